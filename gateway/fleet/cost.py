"""What work costs on one engine core, in seconds: physics with starting values, scaled to what is seen.

    prefill(n, context) = scale * (prefill_token * n + prefill_quadratic * n * (context + n / 2))
    step(running, kv)   = scale * (step + step_request * running + kv_token * kv)

The form is a roofline: a prompt token costs its matrix multiplications, and attention to all tokens before it; a
decode step reads the weights, and the KV of every resident token. Each line has one fitted scale. Halving or doubling
any of these hardly moves the routing, so one scale each is enough; what matters is to be right within a factor of two
on a tiny model on a CPU as well as on 70B on eight GPUs, soon after the start.

Who gets no requests learns nothing, so one unlucky minute could make an engine look slow for ever: equal engines were
seen to differ 20-fold, and the one that looked worst got none of 240 requests, twelve at a time. So each engine
believes what its peers see, as far as it has seen nothing itself lately (``Peers``).

Pure: no clock, no I/O.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf, isfinite, log

from gateway.fleet.hardware import Costs
from gateway.framework import Load, Scalars, Sums

SCALE_BOUND = 50.0
"""A fitted scale stays in 1/50..50 of the profile. 8B on one GPU is at 1/2.5 of the default, a small model on a CPU
at 10 times; what asks for more is a fault somewhere (a stopped process, a clock), not a speed."""

LEAST_SCALE = 1 / SCALE_BOUND

OVERHEAD_BOUND = 2.0
"""Seconds. What a first token takes beyond computing the prompt: network, tokenizing, the step it waits for."""

MEMORY = 0.95
"""Weight of what was seen before at each new observation: the last 20 count, so that a change of speed (a hot GPU, a
neighbour) is followed within some dozens of requests although slower times weigh less."""

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

PEERS_COUNT = 4.0
"""Own observations that weigh as much as what the peers see: engines of one model mostly are of one kind, and those
that are not show it within a dozen requests."""

CERTAIN = 2.0
"""Standard errors by which an engine has to differ from its peers before any of that is believed. Who seems faster by
chance is sent whatever is new: of three equal engines on a busy machine, which seemed to differ by a tenth, one took
half of all prefixes, and lost what the others had room for."""


@dataclass(slots=True)
class _Line:
    """``seconds = overhead + scale * expected``, fitted by least squares with forgetting and a prior.

    Five sums, solved in closed form. ``overhead_weight``: of the belief that the overhead is 0; infinite: it is 0.
    """

    overhead_weight: float
    scale: float = 1.0
    overhead: float = 0.0
    _w: float = field(default=0.0, init=False)
    _wx: float = field(default=0.0, init=False)
    _wy: float = field(default=0.0, init=False)
    _wxx: float = field(default=0.0, init=False)
    _wxy: float = field(default=0.0, init=False)
    seen: int = field(default=0, init=False)  # observations, and requests that might have been some
    # Of an observation around the line, squared, as a fraction of its length: what is assumed, until it is seen.
    variance: float = field(default=NOISE**2, init=False)

    def learn(self, x: float, y: float, share: float = 1.0) -> None:
        """``share``: 0..1, of an observation that this counts as."""
        self.seen += 1
        memory = MEMORY**share
        # An impossibly short time would outweigh everything: none weighs more than a quarter of what was expected.
        length = (self.overhead + self.scale * x) / 4
        if length < y:
            length = y
        if length < SHORTEST:
            length = SHORTEST
        weight = share / (NOISE * length) ** 2
        off = (y - self.overhead - self.scale * x) / length
        self.variance = memory * self.variance + (1 - memory) * off * off
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


def _prefill_line() -> _Line:
    return _Line(overhead_weight=1 / OVERHEAD_SPREAD**2)


def _step_line() -> _Line:
    # An empty step is the constant of its own line: an overhead beside it could not be told from it.
    return _Line(overhead_weight=inf)


class Peers:
    """What the engines of one model, role and start that are fitted see together. ``count``: how many there are.
    ``news``: what either line was told, counted."""

    def __init__(self) -> None:
        self.prefill = _prefill_line()
        self.step = _step_line()
        self.count = 0
        self.news = 0

    def join(self, member: FittedCost) -> Callable[[], object]:
        """Count ``member`` until it is gone, or what is returned is called."""
        self.count += 1
        leave = weakref.finalize(member, self._leave)
        leave.atexit = False
        return leave

    def _leave(self) -> None:
        self.count -= 1


@dataclass(slots=True)
class _Blend:
    """An engine's own line, and its peers' in its place as far as the own is old or young.

    ``common``: the peers' line; None: there are none. ``count``: own observations, each older one ``MEMORY`` times
    less. It fades further with every turn missed, a turn being as many requests of all peers as there are peers.
    """

    own: _Line
    common: _Line | None
    scale: float = 1.0
    overhead: float = 0.0
    count: float = field(default=0.0, init=False)
    _learnt_at: int = field(default=0, init=False)
    _due: int = field(default=0, init=False)

    def learn(self, x: float, y: float, share: float = 1.0) -> None:
        """What follows from it is told by ``now``."""
        own, common = self.own, self.common
        own.learn(x, y, share)
        self.count = MEMORY**share * self.count + share
        if common is None:
            self.scale, self.overhead = own.scale, own.overhead
        else:
            common.learn(x, y, share)
            self._learnt_at = self._due = common.seen

    def turn_to(self, common: _Line | None, turn: int) -> None:
        """Believe others from now on; what was seen here stays."""
        self.common = common
        self._learnt_at = common.seen if common is not None else 0
        self._mix(turn)

    def now(self, turn: int) -> _Blend:
        """Itself, with what the peers have seen taken in once a turn: this runs for every candidate of a request."""
        if self.common is not None and self.common.seen >= self._due:
            self._mix(turn)
        return self

    def _mix(self, turn: int) -> None:
        own, common = self.own, self.common
        if common is None:
            self.scale, self.overhead = own.scale, own.overhead
            return
        self._due = common.seen + turn
        count = self.count * MEMORY ** ((common.seen - self._learnt_at) / turn)
        share = count / (count + PEERS_COUNT) * self._certainty(count)
        self.scale = common.scale ** (1 - share) * own.scale**share
        self.overhead = (1 - share) * common.overhead + share * own.overhead

    def _certainty(self, count: float) -> float:
        """How much of the difference to the peers is none of chance, in 0..1: James and Stein's estimator, without its
        negative part."""
        assert self.common is not None
        apart = log(self.own.scale / self.common.scale)
        chance = CERTAIN**2 * self.own.variance
        return max(0.0, 1 - chance / (count * apart * apart)) if count * apart * apart > 0 else 0.0


class FittedCost:
    """``framework.CostModel``, fitted from what the gateway sees.

    ``start``: the values of scale 1; where its ``fit`` is false they stay, whatever peers see. ``peers``: of the same
    model, role and start; None: alone.
    """

    def __init__(self, start: Costs, peers: Peers | None = None) -> None:
        self.start = start
        self._peers: Peers | None = None
        self._leave: Callable[[], object] | None = None
        self._prefill = _Blend(_prefill_line(), None)
        self._step = _Blend(_step_line(), None)
        self._scalars: Scalars | None = None
        self._stale_at = 0
        self._join(peers if start.fit else None)

    @property
    def scalars(self) -> Scalars:
        """As they are now: kept until something was learned here, or the peers may have told more."""
        scalars = self._scalars
        if scalars is None or (self._peers is not None and self._peers.news >= self._stale_at):
            scalars = self._scalars = self._scaled()
        return scalars

    def restart(self, start: Costs, peers: Peers | None = None) -> None:
        """Begin again from other values, among their ``peers``; from the same ones what was seen here stays. Those who
        were peers before keep what they know."""
        if start != self.start:
            self.start = start
            self._prefill = _Blend(_prefill_line(), None)
            self._step = _Blend(_step_line(), None)
            self._scalars = None
        self._join(peers if start.fit else None)

    def prefill_seconds(self, tokens: int, context: int = 0) -> float:
        """To compute ``tokens`` new prompt tokens behind ``context`` held ones; without queueing and overhead."""
        if tokens <= 0:
            return 0.0
        token, quadratic, _, _, _, _ = self.scalars
        return tokens * (token + quadratic * (max(0, context) + tokens / 2))

    def step_seconds(self, running: float, kv_tokens: float) -> float:
        """One decode step of a batch of ``running`` requests with ``kv_tokens`` resident."""
        scalars = self.scalars
        return scalars.step + scalars.step_request * max(0.0, running) + scalars.kv_token * max(0.0, kv_tokens)

    @property
    def kv_token_seconds(self) -> float:
        return self.scalars.kv_token

    @property
    def prefill_scale(self) -> float:
        """Of the starting prefill line, in 1/50..50."""
        return self._prefill.now(self._turn).scale

    @property
    def step_scale(self) -> float:
        """Of the starting step line, in 1/50..50."""
        return self._step.now(self._turn).scale

    def ttft(self, load: Load, new_tokens: int, context: int = 0) -> float:
        """Predicted seconds to the first token of a request that is placed now, and is not yet in ``load``."""
        running, kv_tokens = load.requests + load.foreign_requests, load.kv_tokens + load.foreign_kv_tokens
        sums = running, load.prefill_tokens, load.prefill_attention, load.prefill_done, kv_tokens
        return self.first_token(sums, new_tokens, context)

    def first_token(self, sums: Sums, new_tokens: int, context: int) -> float:
        """``ttft`` beside so much work."""
        return self.wait(sums) + self.prefill_seconds(new_tokens, context)

    def wait(self, sums: Sums) -> float:
        """What of ``first_token`` is not the prompt's own computing."""
        token, quadratic, step, step_request, kv_token, overhead = self.scalars
        running, waiting, attention, done, kv_tokens = sums
        queued = token * waiting + quadratic * attention - done
        if queued > 0:
            overhead += queued
        if running:
            overhead += step + step_request * max(0.0, running) + kv_token * max(0.0, kv_tokens)
        return overhead

    def learn_prefill(
        self, tokens: int, context: int, seconds: float, *, ahead: int = 0, ahead_attention: float = 0.0
    ) -> None:
        """A first token came ``seconds`` after its engine began with the queue at whose end its request was.

        ``tokens``: that had to be computed for it, behind ``context`` that the engine held already. ``ahead``,
        ``ahead_attention``: of those that were queued before it (``Reservation``). Nonsense is ignored.
        """
        expected = self._expected_prefill(tokens, context)
        expected += self.start.prefill_token * max(0, ahead) + self.start.prefill_quadratic * max(0.0, ahead_attention)
        if self.start.fit and tokens > 0 and _sane(seconds) and _sane(expected):
            self._prefill.learn(expected, seconds)
            self._told()

    def learn_step(self, running: float, kv_tokens: float, seconds: float) -> None:
        """The tokens of a request came ``seconds`` apart on average, in a batch of ``running`` (itself included)."""
        expected = self._expected_step(running, kv_tokens)
        if self.start.fit and _sane(seconds) and _sane(expected):
            self._step.learn(expected, seconds)
            self._told()

    def learn_whole(
        self,
        tokens: int,
        context: int,
        running: float,
        kv_tokens: float,
        steps: float,
        seconds: float,
        *,
        ahead: int = 0,
        ahead_attention: float = 0.0,
    ) -> None:
        """An answer that was not streamed came ``seconds`` after its engine began with the queue at whose end it was.

        Which part of that was the prefill's is not told. It is divided as both are believed to be now, and counts for
        each by its part: so both follow a machine that is faster or slower in all, and answers of unlike lengths tell
        the two apart, as in Richardson and Lucy's deconvolution. Arguments as of the two above; ``steps``: taken.
        """
        start = self.start
        if not (start.fit and tokens > 0 and steps > 0 and _sane(seconds)):
            return
        prefill = self._expected_prefill(tokens, context)
        prefill += start.prefill_token * max(0, ahead) + start.prefill_quadratic * max(0.0, ahead_attention)
        step, turn = self._expected_step(running, kv_tokens), self._turn
        prefill_line, step_line = self._prefill.now(turn), self._step.now(turn)
        first = prefill_line.overhead + prefill_line.scale * prefill
        rest = step_line.scale * step * steps
        if not (_sane(first) and _sane(rest)):
            return
        share = first / (first + rest)
        prefill_line.learn(prefill, seconds * share, share)
        step_line.learn(step, seconds * (1 - share) / steps, 1 - share)
        self._told()

    def learn_nothing(self, *, prefill: bool = True, step: bool = True) -> None:
        """A request ended whose times tell nothing of its prefill or its steps: it was not streamed, or too short.

        What was seen before grows older by it: else the last streams would decide on all that is not streamed.
        """
        if self._peers is not None:
            self._peers.prefill.seen += prefill
            self._peers.step.seen += step
            self._peers.news += prefill + step

    def _join(self, peers: Peers | None) -> None:
        """Be one of ``peers``, and of no others."""
        if peers is not self._peers:
            if self._leave is not None:
                self._leave()
            self._peers = peers
            self._leave = peers.join(self) if peers is not None else None
            self._scalars = None
        if self._prefill.common is not (peers.prefill if peers is not None else None):
            self._prefill.turn_to(peers.prefill if peers is not None else None, self._turn)
            self._step.turn_to(peers.step if peers is not None else None, self._turn)

    def _told(self) -> None:
        self._scalars = None
        if self._peers is not None:
            self._peers.news += 1

    def _scaled(self) -> Scalars:
        start, turn, peers = self.start, 1, self._peers
        if peers is not None:
            turn = peers.count
            self._stale_at = peers.news + turn
        prefill_line = self._prefill.now(turn)
        prefill, step = prefill_line.scale, self._step.now(turn).scale
        return Scalars(
            prefill * start.prefill_token,
            prefill * start.prefill_quadratic,
            step * start.step,
            step * start.step_request,
            step * start.kv_token,
            prefill_line.overhead,
        )

    @property
    def _turn(self) -> int:
        """Requests of all peers in which each has had one, were they spread evenly."""
        return self._peers.count if self._peers is not None else 1

    def _expected_prefill(self, tokens: int, context: int) -> float:
        tokens, context = max(0, tokens), max(0, context)
        start = self.start
        return start.prefill_token * tokens + start.prefill_quadratic * tokens * (context + tokens / 2)

    def _expected_step(self, running: float, kv_tokens: float) -> float:
        start = self.start
        return start.step + start.step_request * max(0.0, running) + start.kv_token * max(0.0, kv_tokens)


def _sane(seconds: float) -> bool:
    """A time that something may be learned from: up to a day."""
    return isfinite(seconds) and 0 < seconds < 86_400
