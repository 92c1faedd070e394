"""The cost model of one engine core: seconds of work by a roofline, scaled to measured times.

The form is a roofline (``framework.Scalars``): a prompt token costs its matrix multiplications, and attention to all
tokens before it; a step reads the weights, and the KV of every resident token. Prefill and steps have one fitted scale
each, which an engine shares with its peers (``fit.PeerGroup``) unless it is known to differ. Half or twice of any of
these values hardly changes the routing, so one scale each is enough. The aim is to be right within a factor of two soon
after the start, for a tiny model on a CPU as well as for 70B on eight GPUs.

Pure: no clock, no I/O.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import exp, isfinite

from gateway.fleet.load.fit import FADE, LEAST_SCALE, SCALE_BOUND, Deviation, PeerGroup
from gateway.fleet.load.kept import KeptDeviation
from gateway.fleet.load.ledger import Ledger
from gateway.fleet.load.lessons import PREFILL, REQUEST, STEP, WHOLE, Tell
from gateway.fleet.settings import StartingCosts
from gateway.framework import Scalars

SHORTEST = 1e-9
"""Seconds: no clock shows less, and the ratio of a still smaller number to an expectation can be 0."""

LONGEST = 86_400.0
"""Seconds: an observation longer than a day is a fault."""

LEAST_PREFILL = 0.25
"""Least share of a time to first token that is credited to prefill, however much the batch is estimated to add."""


class FittedCost:
    """``framework.CostModel``, fitted to times that the gateway measures.

    ``start``: the values of scale 1; if its ``fit`` is false, they stay. ``peers``: the cores of the same model, role
    and start; None: there are none. ``scalars``: the current values; the same object until what the peers share
    changes. A plain attribute: it is read for each candidate of each request. ``ledger``: the core's, which is told of
    each change; None: nobody is. ``tell``: tells other processes of this gateway what is learned; None: there are none.
    """

    scalars: Scalars

    def __init__(self, start: StartingCosts, peers: PeerGroup | None = None, ledger: Ledger | None = None) -> None:
        self.start = start
        self._ledger = ledger
        self.tell: Tell | None = None
        self._prefill, self._step = Deviation(), Deviation()
        self._alone, self._peers = True, PeerGroup()
        self._leave = self._peers.join(self)
        self._join(peers)

    @property
    def prefill_scale(self) -> float:
        """Of the starting prefill line, in 1/50..50."""
        return self.scalars.prefill_token / self.start.prefill_token

    @property
    def step_scale(self) -> float:
        """Of the starting step line, in 1/50..50."""
        return self.scalars.step / self.start.step

    def reconfigure(self, start: StartingCosts, peers: PeerGroup | None = None) -> None:
        """Go on with ``start`` among ``peers``. If the values differ from before, this core's own observations are
        dropped; those of the peers stay."""
        self._peers.learn()
        if start != self.start:
            self.start = start
            self._prefill, self._step = Deviation(), Deviation()
        self._join(peers)

    def reset(self) -> None:
        """Drop this core's own observations: the engine is another process, which has to warm up first."""
        self._peers.learn()
        self._prefill, self._step = Deviation(), Deviation()
        self.refit()

    def keep(self) -> tuple[KeptDeviation, KeptDeviation, int]:
        """How far prefill and steps deviate here, and the requests of its peers since its last one."""
        return self._prefill.keep(), self._step.keep(), max(0, self._peers.requests - self.learned_at)

    def restore(self, prefill: KeptDeviation, step: KeptDeviation, idle: int) -> None:
        """Go on from what ``keep`` gave, among peers that have gone on from theirs."""
        self._prefill.restore(prefill)
        self._step.restore(step)
        self.learned_at = self._peers.requests - idle
        self.refit()

    def refit(self) -> None:
        """Set ``scalars`` to what the peers share, and how far this core is known to differ from it."""
        peers, start = self._peers, self.start
        prefill, overhead, step = peers.shared
        if peers.count > 1:
            fade = FADE ** max(0.0, (peers.requests - self.learned_at) / peers.count - 1)
            prefill, step = prefill * exp(self._prefill.certain * fade), step * exp(self._step.certain * fade)
        prefill, step = min(max(prefill, LEAST_SCALE), SCALE_BOUND), min(max(step, LEAST_SCALE), SCALE_BOUND)
        self.scalars = Scalars(
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
        if self._ledger is not None:
            self._ledger.price(self.scalars)

    def learn_prefill(
        self,
        tokens: int,
        context: int,
        seconds: float,
        *,
        at: float,
        ahead: tuple[int, float] = (0, 0.0),
        running: float = 0.0,
        kv_tokens: float = 0.0,
    ) -> None:
        """A first token came ``seconds`` after the engine began with the queue that ended with its prompt.

        ``tokens``: of the prompt, computed behind ``context`` tokens that the engine held. ``at``: when the request was
        sent, in seconds of any clock; also below. ``ahead``: tokens and attention of the prompts before it
        (``Reservation``). ``running``, ``kv_tokens``: the batch in the same steps. Impossible values are ignored.
        """
        beside = running, kv_tokens
        self._peers.observe(self, partial(self._learn_prefill, tokens, context, seconds, at, ahead, beside))
        if self.tell is not None:
            self.tell(PREFILL, (tokens, context, seconds, at, *ahead, *beside))

    def _learn_prefill(
        self,
        tokens: int,
        context: int,
        seconds: float,
        at: float,
        ahead: tuple[int, float],
        beside: tuple[float, float],
    ) -> bool:
        if not (self.start.fit and tokens > 0 and SHORTEST < seconds < LONGEST):
            return False
        running, kv_tokens = beside
        own, expected = self._expected_prefill(tokens, context, ahead)
        scalars, peers = self.scalars, self._peers
        line = peers.prefill
        batch = scalars.step_request * max(0.0, running) + scalars.kv_token * max(0.0, kv_tokens)
        batch *= 1 + (max(0, ahead[0]) + tokens) / scalars.step_tokens
        if not (0 < expected < LONGEST and isfinite(batch)):
            return False
        estimated = line.overhead + line.scale * expected + batch
        weight = line.scale * own / estimated
        self._prefill.learn(line, seconds, estimated, weight, at)
        line.learn(expected, max(seconds - batch, LEAST_PREFILL * seconds), own / expected)
        return True

    def learn_step(self, running: float, kv_tokens: float, seconds: float, *, at: float) -> None:
        """The tokens of a request came ``seconds`` apart on average, without the time of prompts that were computed
        meanwhile. ``running``: requests of the batch, itself included. ``kv_tokens``: resident tokens of the batch."""
        self._peers.observe(self, partial(self._learn_step, running, kv_tokens, seconds, at))
        if self.tell is not None:
            self.tell(STEP, (running, kv_tokens, seconds, at))

    def _learn_step(self, running: float, kv_tokens: float, seconds: float, at: float) -> bool:
        start = self.start
        expected = start.step + start.step_request * max(0.0, running) + start.kv_token * max(0.0, kv_tokens)
        if not (start.fit and SHORTEST < seconds < LONGEST and 0 < expected < LONGEST):
            return False
        line = self._peers.step
        self._step.learn(line, seconds, line.scale * expected, 1.0, at)
        line.learn(expected, seconds)
        return True

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
        ahead: tuple[int, float] = (0, 0.0),
    ) -> None:
        """An unstreamed answer came ``seconds`` after the engine began with the queue that ended with its prompt.

        The part of the prefill in that is unknown. ``seconds`` is divided in the ratio of the current estimates, and
        each part weighs by its share: so both follow a machine that is faster or slower in all, and answers of
        different lengths separate the two, as in Richardson and Lucy's deconvolution. ``steps``: decode steps. The
        other arguments are those of the two methods above.
        """
        batch = running, kv_tokens
        self._peers.observe(self, partial(self._learn_whole, tokens, context, batch, steps, seconds, at, ahead))
        if self.tell is not None:
            self.tell(WHOLE, (tokens, context, *batch, steps, seconds, at, *ahead))

    def _learn_whole(
        self,
        tokens: int,
        context: int,
        batch: tuple[float, float],
        steps: float,
        seconds: float,
        at: float,
        ahead: tuple[int, float],
    ) -> bool:
        start, (running, kv_tokens) = self.start, batch
        if not (start.fit and tokens > 0 and steps > 0 and SHORTEST < seconds < LONGEST):
            return False
        own, prefill = self._expected_prefill(tokens, context, ahead)
        step = start.step + start.step_request * max(0.0, running) + start.kv_token * max(0.0, kv_tokens)
        peers = self._peers
        prefill_line, step_line = peers.prefill, peers.step
        first = prefill_line.overhead + prefill_line.scale * prefill
        rest = step_line.scale * step * steps
        estimated = first + rest
        if not (0 < first < LONGEST and 0 < rest < LONGEST):
            return False
        share = first / estimated
        self._prefill.learn(prefill_line, seconds, estimated, prefill_line.scale * own / estimated, at)
        self._step.learn(step_line, seconds, estimated, 1 - share, at)
        prefill_line.learn(prefill, seconds * share, share)
        step_line.learn(step, seconds * (1 - share) / steps, 1 - share)
        return True

    def count_request(self) -> None:
        """A request has ended there. Deviations of peers that got no request meanwhile fade by this count."""
        self._count()
        if self.tell is not None:
            self.tell(REQUEST, ())

    def hear(self, kind: str, numbers: tuple[float, ...]) -> None:
        """Learn what another process of this gateway has seen there. ``kind``, ``numbers``: of a lesson, but of an
        answer's; as many as there must be, and finite."""
        learn: Callable[[], bool]
        if kind == REQUEST:
            self._count()
            return
        if kind == PREFILL:
            tokens, context, seconds, at, ahead, attention, running, kv = numbers
            sums, batch = (int(ahead), attention), (running, kv)
            learn = partial(self._learn_prefill, int(tokens), int(context), seconds, at, sums, batch)
        elif kind == STEP:
            learn = partial(self._learn_step, *numbers)
        else:
            tokens, context, running, kv, steps, seconds, at, ahead, attention = numbers
            sums, batch = (int(ahead), attention), (running, kv)
            learn = partial(self._learn_whole, int(tokens), int(context), batch, steps, seconds, at, sums)
        self._peers.observe(self, learn)

    def _count(self) -> None:
        peers = self._peers
        peers.requests += 1
        if peers.requests >= peers.due:
            peers.publish()

    def _join(self, peers: PeerGroup | None) -> None:
        """Leave the present peers and join ``peers``; without any, a group of its own."""
        if peers is None or not self.start.fit:
            peers, self._alone = self._peers if self._alone else PeerGroup(), True
        else:
            self._alone = False
        if peers is not self._peers:
            self._leave()
            self._peers, self._leave = peers, peers.join(self)
        self.learned_at = peers.requests
        self.refit()

    def _expected_prefill(self, tokens: int, context: int, ahead: tuple[int, float]) -> tuple[float, float]:
        """Seconds that a prompt takes at scale 1, and that it and the queue before it take."""
        start = self.start
        own = tokens * (start.prefill_token + start.prefill_quadratic * (max(0, context) + tokens / 2))
        queue = start.prefill_token * max(0, ahead[0]) + start.prefill_quadratic * max(0.0, ahead[1])
        return own, own + queue
