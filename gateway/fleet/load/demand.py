"""What is asked of a model, lately: how often requests come, and what a mean one needs. Older ones count less and less.

Pure: each call says when it is.
"""

from __future__ import annotations

from collections import deque
from math import exp

from gateway.fleet.load.wanted import Demand

LATELY = 30.0
"""Seconds in which what has come counts e times less: an autoscaler looks about every 15 s, and an engine takes longer
to start than that. Of a Poisson stream of 1 request/s the rate is then known to 13 %."""

GONE = 0.01
"""What is left of a request that counts no more: after two minutes of a single one, after six of 100 a second."""

RECENT = 64
"""Requests of which the median is taken."""


class DemandMeter:
    """``new`` and the other sums are of the placed requests, each with the weight that it has left."""

    def __init__(self, now: float) -> None:
        """``now``: Clock.monotonic(), as everywhere here."""
        self._began = now
        self._came_at = self._placed_at = now
        self._came = 0.0
        self._weight = 0.0
        self._new = self._squares = self._attention = 0.0
        self._output = self._context = 0.0
        self._recent: deque[tuple[int, int]] = deque(maxlen=RECENT)

    def came(self, now: float) -> None:
        """A request has come that wants to be placed, whether it is or not."""
        self._came = self._came * exp((self._came_at - now) / LATELY) + 1.0
        self._came_at = now

    def placed(self, now: float, prompt: int, new: int, output: float) -> None:
        """A request was placed, of whose ``prompt`` tokens ``new`` are to be computed. ``output``: tokens expected of
        its answer; 0: it generates none."""
        left = exp((self._placed_at - now) / LATELY)
        self._placed_at = now
        self._weight = self._weight * left + 1.0
        self._new = self._new * left + new
        self._squares = self._squares * left + new * new
        self._attention = self._attention * left + new * (prompt - new / 2)
        self._output = self._output * left + output
        self._context = self._context * left + output * (prompt + output / 2)
        self._recent.append((new, prompt))

    def rate(self, now: float) -> float:
        """Requests a second; 0 after some minutes without any."""
        seen = 1.0 - exp((self._began - now) / LATELY)
        left = self._came * exp((self._came_at - now) / LATELY)
        return left / (LATELY * max(seen, 1.0 / LATELY)) if left >= GONE else 0.0

    def demand(self, now: float, *, share: float = 1.0, backlog: float = 0.0, running: float = 0.0) -> Demand | None:
        """None: nothing was placed yet, so that nothing is known of what requests need. ``share``: of all requests,
        that this process sees. ``backlog``, ``running``: see ``Demand``."""
        if not self._weight:
            return None
        new, output = self._new / self._weight, self._output / self._weight
        context = self._context / self._output if self._output else 0.0
        variation = max(0.0, self._squares / self._weight / (new * new) - 1.0) if new else 0.0
        attention = self._attention / self._weight
        return Demand(self.rate(now) / share, new, attention, output, context, variation, backlog, running)

    @property
    def median(self) -> tuple[int, int] | None:
        """New tokens, and all tokens, of the median prompt by new tokens; None: none was placed yet."""
        recent = sorted(self._recent)
        return recent[len(recent) // 2] if recent else None
