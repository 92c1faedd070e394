"""What the engines of one model and role that are declared alike teach together, and by how much one differs.

One line is fitted to what all of them show. Engines that are declared alike mostly are alike, and what one of them
seems to have over the others is mostly chance: its first requests, a busy neighbour, prompts that happened to wait.
Whoever believes it sends everything new to the engine that looks fastest. Three equal engines on a busy machine, one of
which had been slow three times at its start, served 0.66 to 0.78 of their tokens from cache where 0.80 could be had.

So an engine departs from the line on long evidence only: by the mean of its *batches* of observations, as far as that
exceeds what chance does to such a mean (James and Stein's estimator, without its negative part). The observations of
some busy seconds are alike, so that their own scatter says too little of chance; the scatter of batches has that in it
(batch means, Conway 1963), if each is long enough. Engines of other hardware are told apart within some hundred
requests, declared ones at once.

Pure: no clock, no I/O.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from math import exp, inf, log
from typing import NamedTuple

SCALE_BOUND = 50.0
"""A fitted scale stays in 1/50..50 of the profile. 8B on one GPU is at 1/2.5 of the default, a small model on a CPU
at 10 times; what asks for more is a fault somewhere (a stopped process, a clock), not a speed."""

LEAST_SCALE = 1 / SCALE_BOUND

OVERHEAD_BOUND = 2.0
"""Seconds. What a first token takes beyond computing the prompt: network, tokenizing, the step it waits for."""

MEMORY = 0.95
"""Weight of what was seen before at each new observation of an engine: its last 20 count, so that a change of speed (a
hot GPU, a neighbour) is followed within some dozens of requests although slower times weigh less."""

NOISE = 0.3
"""Spread of an observation around the truth, as a fraction of it. Times vary in proportion to their length; weighing
each by 1 / (its own length)^2 also makes one that was held up by something else count for little."""

SCALE_PRIOR = 0.01
"""Weight of the belief that the scale is 1: that of a tenth of an observation at a scale of 10. So the first
observations move it nearly all the way, and a first one 300 times too long (a compile) hardly moves it."""

SHORTEST = 1e-4
"""Seconds: no exchange over a socket is shorter, so nothing weighs more than one of this length."""

OVERHEAD_SPREAD = 0.02
"""Seconds around 0 in which the overhead is believed to lie before anything was seen: network and one step. Small, so
that prompts all of one length teach the scale rather than the overhead."""

WARM_UP = 8
"""First observations of an engine that say nothing of its speed against others': it compiles, and its caches fill."""

BATCH = 8.0
"""Observations whose mean is one piece of evidence, at least: more than a step of an engine answers at once."""

BATCH_SECONDS = 5.0
"""That a batch covers, at least. What makes an engine slow for a while lasts for seconds: of three equal ones on two
busy cores, means of 8 observations (0.3 to 1 s) were off by 0.4, and five in a row were off alike."""

BATCH_MEMORY = 0.9
"""Weight of the batches before at each new one: the last 10 count."""

BATCH_SPREAD = 0.2
"""Standard deviation of a batch's mean (of logarithms) that is assumed until it is seen: two thirds of ``NOISE``, that
of a single observation, since those of a batch are mostly alike."""

BATCH_PRIOR = 4.0
"""Batches that this assumption weighs as much as."""

CERTAIN = 3.0
"""Standard errors by which an engine has to differ from its peers before any of that is believed. By chance that is so
once in 400 times, and then by little."""

FARTHEST = log(4.0)
"""Of one observation, from what was expected: beyond it is a stall or a fault, not a speed."""

FADE = 0.95
"""What is left of a departure for each turn that an engine misses, a turn being as many requests of all peers as there
are peers: one that gets no requests could not show that it has become faster."""

USUAL_MEMORY = 0.99
"""Weight of what was seen before in how far observations are from the line usually: the last 100 of all peers count."""


YOUNG = 20
"""First observations that are told to all at once: the starting values may be wrong by ten."""


class Told(NamedTuple):
    """Of both lines; ``overhead`` in seconds."""

    prefill: float
    overhead: float
    step: float


@dataclass(slots=True)
class Line:
    """``seconds = overhead + scale * expected``, fitted by least squares with forgetting and a prior.

    Five sums, solved in closed form. ``overhead_weight``: of the belief that the overhead is 0; infinite: it is 0.
    ``engines``: that teach it.
    """

    overhead_weight: float
    scale: float = 1.0
    overhead: float = 0.0
    engines: int = 1
    _w: float = field(default=0.0, init=False)
    _wx: float = field(default=0.0, init=False)
    _wy: float = field(default=0.0, init=False)
    _wxx: float = field(default=0.0, init=False)
    _wxy: float = field(default=0.0, init=False)
    _usual: float = field(default=0.0, init=False)
    _looked: float = field(default=0.0, init=False)

    def off(self, seconds: float, expected: float, weight: float) -> float:
        """How much longer ``seconds`` is than ``expected`` by the line, as a logarithm, beside what is usual: times are
        scattered unevenly around a line, and no line is right everywhere."""
        off = max(-FARTHEST, min(FARTHEST, log(seconds / expected)))
        self._looked = USUAL_MEMORY * self._looked + weight
        if self._looked:
            self._usual += (off - self._usual) * weight / self._looked
        return off - self._usual

    def learn(self, x: float, y: float, share: float = 1.0) -> None:
        """``share``: 0..1, of an observation that this counts as."""
        memory = MEMORY ** (share / self.engines)
        # An impossibly short time would outweigh everything: none weighs more than a quarter of what was expected.
        length = (self.overhead + self.scale * x) / 4
        if length < y:
            length = y
        if length < SHORTEST:
            length = SHORTEST
        weight = share / (NOISE * length) ** 2
        self._w = w = memory * self._w + weight
        self._wx = wx = memory * self._wx + weight * x
        self._wy = wy = memory * self._wy + weight * y
        self._wxx = wxx = memory * self._wxx + weight * x * x
        self._wxy = wxy = memory * self._wxy + weight * x * y
        xx, xy, overhead = wxx + SCALE_PRIOR, wxy + SCALE_PRIOR, 0.0
        if self.overhead_weight < inf:
            w += self.overhead_weight
            overhead = (wy * xx - wx * xy) / (w * xx - wx * wx)
            if overhead < 0.0:
                overhead = 0.0
            elif overhead > OVERHEAD_BOUND:
                overhead = OVERHEAD_BOUND
        scale = (xy - overhead * wx) / xx
        self.overhead = overhead
        self.scale = scale if LEAST_SCALE < scale < SCALE_BOUND else min(max(scale, LEAST_SCALE), SCALE_BOUND)


@dataclass(slots=True)
class Departure:
    """By how much one engine's times differ from its peers' line, as the logarithm of a factor."""

    _left: int = field(default=WARM_UP, init=False)
    # Of the batch under way.
    _sum: float = field(default=0.0, init=False)
    _weight: float = field(default=0.0, init=False)
    _since: float = field(default=inf, init=False)
    # Of the batches: how many count, their mean, and the sum of their squared distances from it.
    _count: float = field(default=0.0, init=False)
    _mean: float = field(default=0.0, init=False)
    _square: float = field(default=0.0, init=False)

    def learn(self, off: float, weight: float, at: float) -> None:
        """Something was ``off`` the line, as ``Line.off`` says. ``weight``: 0..1, the share of it that was the
        engine's own computing. ``at``: seconds, when it was."""
        if self._left:
            self._left -= 1
            return
        self._sum += weight * off
        self._weight += weight
        self._since = min(self._since, at)
        if self._weight < BATCH or at - self._since < BATCH_SECONDS:
            return
        mean, self._sum, self._weight, self._since = self._sum / self._weight, 0.0, 0.0, inf
        self._count = BATCH_MEMORY * self._count + 1
        off = mean - self._mean
        self._mean += off / self._count
        self._square = BATCH_MEMORY * self._square + off * (mean - self._mean)

    def factor(self, missed: float) -> float:
        """What is believed of it. ``missed``: turns since it was last seen."""
        if self._count <= 1 or not self._mean:  # one batch may be one disturbance
            return 1.0
        variance = (BATCH_PRIOR * BATCH_SPREAD**2 + self._square) / (BATCH_PRIOR + self._count)
        chance = CERTAIN**2 * variance / self._count / self._mean**2
        return exp(self._mean * (1 - chance) * FADE**missed) if chance < 1 else 1.0


class Peers:
    """What the engines of one model, role and start that are fitted see together.

    ``count``: how many there are. ``ended``: their requests that have ended. What is ``told`` to all of them changes
    once a turn, at the same moment for all, so that no engine seems to differ from another by what was seen in
    between; ``version`` counts that.
    """

    def __init__(self) -> None:
        self.prefill = Line(overhead_weight=1 / OVERHEAD_SPREAD**2)
        # An empty step is the constant of its own line: an overhead beside it could not be told from it.
        self.step = Line(overhead_weight=inf)
        self.count = 0
        self.ended = 0
        self.version = 0
        self.told = Told(1.0, 0.0, 1.0)
        self._young = YOUNG
        self._due = 0

    def join(self, member: object) -> Callable[[], object]:
        """Count ``member`` until it is gone, or what is returned is called."""
        self._count(1)
        leave = weakref.finalize(member, self._leave)
        leave.atexit = False
        return leave

    def learned(self) -> None:
        """A line, or a member's departure from it, is another than it was."""
        if self._young:
            self._young -= 1
            self._tell()

    def end(self) -> None:
        """A member's request has ended."""
        self.ended += 1
        if self.ended >= self._due:
            self._tell()

    def _tell(self) -> None:
        self._due = self.ended + max(1, self.count)
        self.version += 1
        self.told = Told(self.prefill.scale, self.prefill.overhead, self.step.scale)

    def _leave(self) -> None:
        self._count(-1)

    def _count(self, more: int) -> None:
        self.count += more
        self.prefill.engines = self.step.engines = max(1, self.count)
