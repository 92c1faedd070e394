"""What work costs on one engine core, in seconds: physics with starting values, scaled to what is seen.

The form is a roofline (``framework.Scalars``): a prompt token costs its matrix multiplications, and attention to all
tokens before it; a step reads the weights, and the KV of every resident token. Prefill and steps have one fitted scale
each, which an engine shares with its peers (``fit.Peers``) as far as it is not known to differ. Halving or doubling any
of these hardly moves the routing, so one scale each is enough; what matters is to be right within a factor of two on a
tiny model on a CPU as well as on 70B on eight GPUs, soon after the start.

Pure: no clock, no I/O.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite

from gateway.fleet.fit import LEAST_SCALE, SCALE_BOUND, Departure, Peers
from gateway.fleet.hardware import Costs
from gateway.framework import Scalars

LONGEST = 86_400.0
"""Seconds: what took longer than a day teaches nothing."""

LEAST_PREFILL = 0.25
"""Of a time to a first token, what prefill is taken to be at least, whatever the batch is believed to add."""


class FittedCost:
    """``framework.CostModel``, fitted from what the gateway sees.

    ``start``: the values of scale 1; where its ``fit`` is false they stay, whatever peers see. ``peers``: of the same
    model, role and start; None: alone.
    """

    def __init__(self, start: Costs, peers: Peers | None = None) -> None:
        self.start = start
        self._prefill, self._step = Departure(), Departure()
        self._peers = Peers()
        self._leave: Callable[[], object] | None = None  # None: alone
        self._scalars: Scalars | None = None
        self._version = 0
        self._learned_at = 0
        self._join(peers)

    @property
    def scalars(self) -> Scalars:
        """As they are now: kept until the peers tell something else."""
        scalars = self._scalars
        if scalars is None or self._peers.version != self._version:
            scalars = self._scalars = self._scaled()
        return scalars

    @property
    def prefill_scale(self) -> float:
        """Of the starting prefill line, in 1/50..50."""
        return self.scalars.prefill_token / self.start.prefill_token

    @property
    def step_scale(self) -> float:
        """Of the starting step line, in 1/50..50."""
        return self.scalars.step / self.start.step

    def restart(self, start: Costs, peers: Peers | None = None) -> None:
        """Go on with other starting values, among ``peers``: what was seen here is forgotten if the values are others,
        and what the peers see stays."""
        if start != self.start:
            self.start = start
            self._prefill, self._step = Departure(), Departure()
        self._join(peers)

    def renewed(self) -> None:
        """The engine is another process, which has yet to warm up."""
        self._prefill, self._step = Departure(), Departure()
        self._scalars = None

    def learn_prefill(
        self,
        tokens: int,
        context: int,
        seconds: float,
        *,
        at: float,
        ahead: int = 0,
        ahead_attention: float = 0.0,
        running: float = 0.0,
        kv_tokens: float = 0.0,
    ) -> None:
        """A first token came ``seconds`` after its engine began with the queue at whose end its request was.

        ``at``: seconds on any clock, when the request was sent; so for the two below. ``tokens``: that had to be
        computed for it, behind ``context`` that the engine held already. ``ahead``, ``ahead_attention``: of those that
        were queued before it (``Reservation``). ``running``, ``kv_tokens``: the batch that was beside it in its steps.
        Nonsense is ignored.
        """
        if not (self.start.fit and tokens > 0 and _sane(seconds)):
            return
        own = self._expected_prefill(tokens, context)
        expected = own + self._expected_queue(ahead, ahead_attention)
        scalars, line = self.scalars, self._peers.prefill
        batch = scalars.step_request * max(0.0, running) + scalars.kv_token * max(0.0, kv_tokens)
        batch *= 1 + (max(0, ahead) + tokens) / scalars.step_tokens
        if not (_sane(expected) and isfinite(batch)):
            return
        believed = line.overhead + line.scale * expected + batch
        weight = line.scale * own / believed
        self._prefill.learn(line.off(seconds, believed, weight), weight, at)
        line.learn(expected, max(seconds - batch, LEAST_PREFILL * seconds), own / expected)
        self._learned()

    def learn_step(self, running: float, kv_tokens: float, seconds: float, *, at: float) -> None:
        """The tokens of a request came ``seconds`` apart on average, in a batch of ``running`` (itself included);
        prompts that were computed meanwhile are not in that."""
        expected = self._expected_step(running, kv_tokens)
        if not (self.start.fit and _sane(seconds) and _sane(expected)):
            return
        line = self._peers.step
        self._step.learn(line.off(seconds, line.scale * expected, 1.0), 1.0, at)
        line.learn(expected, seconds)
        self._learned()

    def learn_whole(
        self,
        tokens: int,
        context: int,
        running: float,
        kv_tokens: float,
        steps: float,
        seconds: float,
        *,
        at: float,
        ahead: int = 0,
        ahead_attention: float = 0.0,
    ) -> None:
        """An answer that was not streamed came ``seconds`` after its engine began with the queue at whose end it was.

        Which part of that was the prefill's is not told. It is divided as both are believed to be now, and counts for
        each by its part: so both follow a machine that is faster or slower in all, and answers of unlike lengths tell
        the two apart, as in Richardson and Lucy's deconvolution. Arguments as of the two above; ``steps``: taken.
        """
        if not (self.start.fit and tokens > 0 and steps > 0 and _sane(seconds)):
            return
        own, step = self._expected_prefill(tokens, context), self._expected_step(running, kv_tokens)
        prefill = own + self._expected_queue(ahead, ahead_attention)
        prefill_line, step_line = self._peers.prefill, self._peers.step
        first = prefill_line.overhead + prefill_line.scale * prefill
        rest = step_line.scale * step * steps
        believed = first + rest
        if not (_sane(first) and _sane(rest)):
            return
        share = first / believed
        for line, departure, weight in (
            (prefill_line, self._prefill, prefill_line.scale * own / believed),
            (step_line, self._step, 1 - share),
        ):
            departure.learn(line.off(seconds, believed, weight), weight, at)
        prefill_line.learn(prefill, seconds * share, share)
        step_line.learn(step, seconds * (1 - share) / steps, 1 - share)
        self._learned()

    def ended(self) -> None:
        """A request ended there, whatever it taught. What is known of others grows older by it."""
        self._peers.end()

    def _join(self, peers: Peers | None) -> None:
        """Be one of ``peers``, and of no others."""
        if peers is None or not self.start.fit:
            if self._leave is not None:
                self._leave()
                self._peers, self._leave = Peers(), None
        elif peers is not self._peers:
            if self._leave is not None:
                self._leave()
            self._peers, self._leave = peers, peers.join(self)
        self._scalars = None
        self._learned_at = self._peers.ended

    def _learned(self) -> None:
        self._learned_at = self._peers.ended
        self._peers.learned()

    def _scaled(self) -> Scalars:
        start, peers = self.start, self._peers
        self._version = peers.version
        prefill, overhead, step = peers.told
        if peers.count > 1:
            missed = max(0.0, (peers.ended - self._learned_at) / peers.count - 1)
            prefill, step = prefill * self._prefill.factor(missed), step * self._step.factor(missed)
        prefill, step = min(max(prefill, LEAST_SCALE), SCALE_BOUND), min(max(step, LEAST_SCALE), SCALE_BOUND)
        return Scalars(
            prefill * start.prefill_token,
            prefill * start.prefill_quadratic,
            step * start.step,
            step * start.step_request,
            step * start.kv_token,
            overhead,
            start.cpu_fetch,
            start.storage_fetch,
            start.step_tokens,
        )

    def _expected_prefill(self, tokens: int, context: int) -> float:
        start = self.start
        return tokens * (start.prefill_token + start.prefill_quadratic * (max(0, context) + tokens / 2))

    def _expected_queue(self, tokens: int, attention: float) -> float:
        return self.start.prefill_token * max(0, tokens) + self.start.prefill_quadratic * max(0.0, attention)

    def _expected_step(self, running: float, kv_tokens: float) -> float:
        start = self.start
        return start.step + start.step_request * max(0.0, running) + start.kv_token * max(0.0, kv_tokens)


def _sane(seconds: float) -> bool:
    """A time that something may be learned from."""
    return isfinite(seconds) and 0 < seconds < LONGEST
