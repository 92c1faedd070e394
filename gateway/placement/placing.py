"""Decide, book, learn: where each leg of a request goes, what is booked there, and what its answer teaches.

``decide`` and ``book`` belong together: no await may lie between the reading of the loads and their booking, or two
concurrent requests would not see each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import msgspec

from gateway.fleet.load.lessons import ANSWER, learn_answer
from gateway.framework import GENERATES, Endpoint, Plan, Request
from gateway.framework.request import DECODE, PREFILL
from gateway.kvcache.index.cache_index import CacheIndex
from gateway.kvcache.index.keys import BlockKeys
from gateway.kvcache.index.use import BlockUse
from gateway.placement.leg_work import LegWork
from gateway.scheduling.scheduler import Scheduler
from gateway.scheduling.trace import Trace

KEEP_KV = frozenset({PREFILL, DECODE})
"""Kinds of legs that leave the prompt's KV on their endpoint. Any other is booked as one request, and no tokens."""

FEWEST, MOST = 0.1, 100.0
"""Bounds of the tokens of one stream event: a count outside of them is a defect."""


class Placeable(Protocol):
    """A request whose prompt is known. ``keys``: of the prompt's blocks."""

    @property
    def request(self) -> Request: ...

    @property
    def keys(self) -> BlockKeys: ...


def decide(
    call: Placeable,
    candidates: Sequence[Endpoint],
    index: CacheIndex,
    scheduler: Scheduler,
    trace: Trace | None = None,
    *,
    form: bool = False,
    fell_back: bool = False,
) -> Plan:
    """Match the request of ``call`` with the caches of ``candidates``, which becomes its ``matches``, and schedule it.

    ``trace``: is given what the plan was made of; None: nobody asks. ``form``: its body is a form, in which the legs'
    fields cannot be set. ``fell_back``: a hand-over of it failed before: its client has waited long enough. In both
    cases the decode endpoint does all of it, which is the plan's reason.

    Raises NoEndpoint where a filter left none, PluginFailed where a plugin failed.
    """
    request = call.request
    request.matches = index.match(call.keys, request.prompt_tokens, candidates)
    plan = scheduler.schedule(request, candidates, trace)
    if (form or fell_back) and len(plan.legs) > 1:
        one_leg = "fell-back" if fell_back else "form"
        return replace(plan, legs=plan.legs[-1:], reason=one_leg)
    return plan


NO_OTHERS: dict[str, LegWork] = {}
"""The legs before the decode leg, of a plan that has none."""


class Placement(msgspec.Struct, eq=False):
    """A request on its endpoints.

    ``legs``: the work of each leg before the decode leg, by kind, until it has ended; that of ``decode`` stays.
    ``computes``: where the prompt is computed, as far as it has not been. ``split``: the decode leg fetches the
    prompt's KV, and does not compute it. ``pure``: no leg of another kind is in the time to the first token, so that it
    teaches what computing costs.
    """

    request: Request
    plan: Plan
    legs: dict[str, LegWork]
    decode: LegWork
    computes: LegWork
    split: bool
    pure: bool

    def ended(self, kind: str, *, ok: bool, seconds: float | None = None) -> LegWork | None:
        """A leg before the decode leg has ended: give back what it had, and learn from it. Its blocks are the caller's
        to ``end``.

        ``seconds``: what it took, where that was the prompt's computing and nothing else. Returns the leg; None where
        there is none, or it had ended before.
        """
        leg = self.legs.pop(kind, None)
        if leg is not None:
            leg.settle()
            if ok:
                leg.blocks.computed()
            if kind == PREFILL:
                self.computes = self.decode
            if seconds is not None:
                leg.learn_prefill(seconds)
                leg.cost.count_request()
        return leg

    def falls_back(self, now: float) -> None:
        """The hand-over failed: from ``now`` on the decode endpoint computes the prompt."""
        self.split = False
        self.decode.book_prompt(now, reported=self.request.stream)

    def cancel(self) -> None:
        """Nothing of it was sent: give back what its legs have."""
        for leg in self.plan.legs[:-1]:
            if (work := self.ended(leg.kind, ok=False)) is not None:
                work.blocks.end()
        self.end(ok=False)

    def end(self, *, ok: bool) -> None:
        """The request has left its decode endpoint. All other legs must have ended before. ``ok``: answered well, so
        that the endpoint holds the prompt."""
        self.decode.settle()
        self.decode.blocks.end(computed=ok)


def book(call: Placeable, plan: Plan, index: CacheIndex, now: float, *, prefilled: Endpoint | None = None) -> Placement:
    """Enter the work of ``plan`` into the ledgers, leg by leg, and what it will bring into the caches.

    ``index``: by which it was made. ``now``: Clock.monotonic(), as when the loads were read. ``prefilled``: the
    endpoint that has answered a prefill leg of this request already.
    """
    request, keys, legs = call.request, call.keys, plan.legs
    if len(legs) == 1:  # nearly every request
        work = LegWork(request, plan.decode, now)
        work.blocks = index.placed(keys, plan.decode)
        work.book_prompt(now, reported=request.stream)
        return Placement(request, plan, NO_OTHERS, work, work, split=False, pure=True)
    split, pure = plan.prefill is not None, True
    others: dict[str, LegWork] = {}
    computes: LegWork | None = None
    for kind, endpoint in legs:
        if kind == PREFILL and endpoint is prefilled:
            continue
        if kind != DECODE and kind != PREFILL:
            pure = False
        if kind in KEEP_KV:
            work = LegWork(request, endpoint, now)
            work.blocks = index.placed(keys, endpoint)
        else:
            work = LegWork(request, endpoint, now, kv=False)
            work.blocks = BlockUse(index, keys, endpoint)
        if kind == (PREFILL if split else DECODE):
            work.book_prompt(now, reported=split or request.stream)
            computes = work
        others[kind] = work
    decode = others.pop(DECODE)
    return Placement(request, plan, others, decode, computes or decode, split, pure)


class Answered(msgspec.Struct, frozen=True):
    """What was seen of an answer that ended well, at ``at``. Times are of Clock.monotonic().

    ``sequences``: answers in it. ``events``: of its stream that carry output; 0 of an unstreamed one. ``first_at``:
    when the first came. ``later``: so many came one by one after it, to tell the time between tokens by; 0: too few.
    ``tokens``: of output, as the engine counted them; None where it did not report.
    """

    at: float
    sequences: int = 1
    events: int = 0
    first_at: float | None = None
    later: int = 0
    tokens: int | None = None


def learn(placement: Placement, answered: Answered) -> None:
    """From a whole answer: the engine's pace, and how long answers are."""
    request = placement.request
    booking, model, generates = placement.decode, request.model, request.kind in GENERATES
    computed = placement.pure and not placement.split
    steps = (answered.tokens or 0) / answered.sequences - 1
    if not request.stream and generates and computed and steps > 0:
        booking.learn_whole(steps, answered.at - booking.at)
    elif answered.first_at is not None:
        if computed:
            booking.learn_prefill(answered.first_at - booking.at)
        if answered.later:
            booking.learn_steps(answered.at, answered.later / answered.sequences, answered.at - answered.first_at)
    booking.cost.count_request()
    per_event = 0.0
    if answered.tokens and answered.events:
        # An event brings several with speculative decoding or with ``--stream-interval``.
        per_event = min(max(answered.tokens / answered.events, FEWEST), MOST)
    output, limit = (answered.tokens or answered.events) / answered.sequences, request.max_tokens
    # An answer that its limit cut off below the expected output is ignored: its length is only a lower bound.
    if not (generates and output and (limit is None or output < limit or output >= model.expected_output)):
        output = 0.0
    learn_answer(model, per_event, output)
    if (tell := booking.cost.tell) is not None:
        tell(ANSWER, (per_event, output), model.name)
