"""Fits cost models: one line for all engines of a model and role that are declared alike, and each engine's deviation.

Engines that are declared alike are mostly alike. If one of them looks faster, the cause is mostly chance: its first
requests, a busy neighbour, prompts that happened to wait. A scheduler that used such a difference would send all new
prompts to the engine that looks fastest. Three equal engines on a busy machine, one of which had been slow three times
at its start, served 0.66 to 0.78 of their tokens from cache, where 0.80 was possible.

So an engine's own scale differs from the shared line only after many observations: by the mean of its *batches* of
observations, reduced by what chance does to such a mean (the positive-part James-Stein estimator). The observations of
a few busy seconds resemble each other, so their own scatter underestimates chance; the scatter of batches does not
(batch means, Conway 1963), if each is long enough. Engines of other hardware are recognised within some hundred
requests, and at once if they are declared.

Pure: no clock, no I/O.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from math import inf, log
from typing import NamedTuple, Protocol

from gateway.fleet.load.kept import KeptDeviation, KeptLine

SCALE_BOUND = 50.0
"""A fitted scale stays in 1/50..50. 8B on one GPU is at 1/2.5 of the default, a small model on a CPU at 10; more is a
fault (a stopped process, a clock), not a speed."""

LEAST_SCALE = 1 / SCALE_BOUND

OVERHEAD_BOUND = 2.0
"""Seconds. The largest overhead of a first token beside computing: network, tokenizing, the step it waits for."""

MEMORY = 0.95
"""Weight of earlier observations at each new one of an engine: its last 20 count, so that a change of speed (a hot GPU,
a neighbour) is followed within some dozens of requests although slower times weigh less."""

NOISE = 0.3
"""Spread of an observation around the true value, as a fraction of it. Times vary in proportion to their length. The
weight 1 / (own length)^2 also makes an observation that was delayed by something else count for little."""

SCALE_PRIOR = 0.01
"""Weight of the prior that the scale is 1: a tenth of an observation at a scale of 10. So the first observations move
the scale nearly all the way, and a first one that is 300 times too long (a compile) hardly moves it."""

SHORTEST = 1e-4
"""Seconds: no exchange over a socket is shorter, so no observation weighs more than one of this length."""

OVERHEAD_SPREAD = 0.02
"""Seconds: standard deviation of the overhead's prior around 0, which is network and one step. Small, so that prompts
that are all of one length teach the scale rather than the overhead."""

WARM_UP = 8
"""First observations of an engine that do not count for its deviation: it compiles, and its caches fill."""

BATCH = 8.0
"""Observations in a batch at least: more than one step of an engine answers at once."""

BATCH_SECONDS = 5.0
"""Seconds that a batch covers at least: an engine is slow for seconds at a time. Of three equal engines on two busy
cores, means of 8 observations (0.3 to 1 s) were off by 0.4, five in a row in the same direction."""

BATCH_MEMORY = 0.9
"""Weight of earlier batches at each new one: the last 10 count."""

BATCH_SPREAD = 0.2
"""Prior standard deviation of a batch's mean (of logarithms): two thirds of ``NOISE``, that of a single observation,
since the observations of a batch resemble each other."""

BATCH_PRIOR = 4.0
"""Weight of this prior, in batches."""

CERTAIN = 3.0
"""Standard errors by which an engine has to differ from its peers; only the part beyond them counts. By chance that
happens once in 400 times, and then the part is small."""

FARTHEST = log(4.0)
"""Largest deviation of one observation that counts: more is a stall or a fault, not a speed."""

FADE = 0.95
"""Factor of a deviation for each turn that an engine misses. A turn is one request per peer. An engine without requests
could not show that it has become faster."""

USUAL_MEMORY = 0.99
"""Weight of earlier observations in the usual deviation from the line: the last 100 of all peers count."""


YOUNG = 20
"""First observations that change ``shared`` at once: the starting values may be wrong by ten."""


class SharedFit(NamedTuple):
    """The scales of both lines, and the ``overhead`` of prefill in seconds."""

    prefill: float
    overhead: float
    step: float


@dataclass(slots=True)
class FittedLine:
    """``seconds = overhead + scale * expected``, fitted by least squares with forgetting and a prior.

    Five sums, solved in closed form. ``overhead_weight``: of the prior that the overhead is 0; infinite: it is 0.
    ``engines``: how many contribute observations. ``usual``: the usual logarithm of a time divided by the estimate of
    it: times scatter unevenly around the line, and no line is right everywhere. ``usual_weight``: of its observations.
    """

    overhead_weight: float
    scale: float = 1.0
    overhead: float = 0.0
    engines: int = 1
    usual: float = field(default=0.0, init=False)
    usual_weight: float = field(default=0.0, init=False)
    _w: float = field(default=0.0, init=False)
    _wx: float = field(default=0.0, init=False)
    _wy: float = field(default=0.0, init=False)
    _wxx: float = field(default=0.0, init=False)
    _wxy: float = field(default=0.0, init=False)

    def keep(self) -> KeptLine:
        fit = self.scale, self.overhead, self.usual, self.usual_weight
        return KeptLine(*fit, self._w, self._wx, self._wy, self._wxx, self._wxy)

    def restore(self, kept: KeptLine) -> None:
        """Go on from ``kept``."""
        self.scale, self.overhead, self.usual, self.usual_weight = (
            kept.scale,
            kept.overhead,
            kept.usual,
            kept.usual_weight,
        )
        self._w, self._wx, self._wy, self._wxx, self._wxy = kept.w, kept.wx, kept.wy, kept.wxx, kept.wxy

    def learn(self, x: float, y: float, share: float = 1.0) -> None:
        """``share``: 0..1, the part of an observation that this counts as."""
        memory = MEMORY ** (share / self.engines)
        # An impossibly short time would outweigh all others: none weighs more than a quarter of the expected time does.
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
class Deviation:
    """How far one engine's times deviate from its peers' line, as the logarithm of a factor.

    ``certain``: the part of it that is not chance; 0 without enough evidence.
    """

    certain: float = field(default=0.0, init=False)
    _left: int = field(default=WARM_UP, init=False)
    # Of the batch under way.
    _sum: float = field(default=0.0, init=False)
    _weight: float = field(default=0.0, init=False)
    _since: float = field(default=inf, init=False)
    # Of the batches: how many count, their mean, and the sum of their squared distances from it.
    _count: float = field(default=0.0, init=False)
    _mean: float = field(default=0.0, init=False)
    _square: float = field(default=0.0, init=False)

    def keep(self) -> KeptDeviation:
        """Without the batch under way."""
        return KeptDeviation(self.certain, self._left, self._count, self._mean, self._square)

    def restore(self, kept: KeptDeviation) -> None:
        """Go on from ``kept``."""
        self.certain, self._left = kept.certain, kept.left
        self._count, self._mean, self._square = kept.count, kept.mean, kept.square

    def learn(self, line: FittedLine, seconds: float, expected: float, weight: float, at: float) -> None:
        """Something took ``seconds`` for which the peers' ``line`` let us expect ``expected``.

        ``weight``: 0..1, the share of it that was the engine's own computing. ``at``: seconds, when it was observed.
        """
        off = max(-FARTHEST, min(FARTHEST, log(seconds / expected)))
        line.usual_weight = looked = USUAL_MEMORY * line.usual_weight + weight
        if looked:
            line.usual += (off - line.usual) * weight / looked
        off -= line.usual
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
        self.certain = 0.0
        if self._count > 1 and self._mean:  # one batch may be one disturbance
            variance = (BATCH_PRIOR * BATCH_SPREAD**2 + self._square) / (BATCH_PRIOR + self._count)
            chance = CERTAIN**2 * variance / self._count / self._mean**2
            if chance < 1:
                self.certain = self._mean * (1 - chance)


class Member(Protocol):
    """An engine of a group. ``learned_at``: the group's ``requests`` when it was last observed."""

    learned_at: int

    def refit(self) -> None:
        """Take over what the group shares now."""
        ...


class PeerGroup:
    """The fitted engines of one model, role and start.

    ``count``: how many there are. ``requests``: theirs that have ended. ``shared``: the fit that all of them use. It
    changes once a turn and for all at the same moment, so that no engine seems to differ from another by observations
    in between. ``due``: the number of ``requests`` from which it is to be published again. ``young``: observations left
    that are published at once.

    Observations wait for that, since nobody uses them before. To learn a turn's in a row takes a fraction of what each
    takes among the steps of a request, whose code is not in the processor's cache.
    """

    def __init__(self) -> None:
        self.prefill = FittedLine(overhead_weight=1 / OVERHEAD_SPREAD**2)
        # An empty step is the constant of its own line: an overhead could not be separated from it.
        self.step = FittedLine(overhead_weight=inf)
        self.count = 0
        self.requests = 0
        self.shared = SharedFit(1.0, 0.0, 1.0)
        self.young = YOUNG
        self.due = 0
        self._observed: list[tuple[Member, int, Callable[[], bool]]] = []
        self._members: set[weakref.ref[Member]] = set()

    def join(self, member: Member) -> Callable[[], object]:
        """Count ``member`` until it is garbage, or the returned function is called."""
        reference = weakref.ref(member, self._leave)
        self._members.add(reference)
        self._count()
        return partial(self._leave, reference)

    def restore(self, prefill: KeptLine, step: KeptLine, young: int) -> None:
        """Go on from what such a group had fitted; all members use it from now on."""
        self.learn()
        self.prefill.restore(prefill)
        self.step.restore(step)
        self.young = young
        self.publish()

    def observe(self, member: Member, learn: Callable[[], bool]) -> None:
        """``learn``: enters what was observed of ``member`` into a line, and its deviation from it; False: it was
        impossible, and is ignored."""
        self._observed.append((member, self.requests, learn))
        if self.young:
            self.learn()

    def learn(self) -> None:
        """Learn what was observed."""
        observed, self._observed = self._observed, []
        for member, requests, learn in observed:
            if learn():
                member.learned_at = requests
                if self.young:
                    self.young -= 1
                    self.publish()

    def publish(self) -> None:
        """Learn what was observed, and have all members use the lines as they are then."""
        self.learn()
        self.due = self.requests + max(1, self.count)
        self.shared = SharedFit(self.prefill.scale, self.prefill.overhead, self.step.scale)
        for reference in tuple(self._members):  # one may become garbage meanwhile
            if (member := reference()) is not None:
                member.refit()

    def _leave(self, reference: weakref.ref[Member]) -> None:
        self._members.discard(reference)
        self._count()

    def _count(self) -> None:
        self.count = len(self._members)
        self.prefill.engines = self.step.engines = max(1, self.count)
