"""One request on its way through a model's queue: what it would cost, by when, where it waits and for what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from math import inf
from types import MappingProxyType
from typing import Self

from gateway.flow.live_kv import Held
from gateway.flow.settings import QueueSettings
from gateway.framework import GENERATES, NO_MATCH, Endpoint, Plan, Request
from gateway.framework.request import DECODE, PREFILL
from gateway.framework.waiting import Waiting
from gateway.placement.placing import Placeable

LEAST_BATCH = 8.0
"""Requests that a decode step's weights are shared between at least. Where fewer run, a request would seem to cost a
whole engine for as long as its answer takes, although the next one would take nothing from it."""


NOTHING: Mapping[int, float] = MappingProxyType({})


class State(Enum):
    """Where it is. Each goes from one to a later one, and never back."""

    NEW = "new"
    WAITING = "waiting"
    PLACED = "placed"
    OVER = "over"


def priced(request: Request, plan: Plan) -> tuple[int, float, float]:
    """Prompt tokens to compute by ``plan``, at least 1; engine seconds of these, and of one token of the answer.

    token = step / max(8, running) + step_request + kv_token * (prompt + expected output / 2)
    """
    decode = plan.decode
    computes = plan.prefill or decode
    held = request.matches.get(computes.slot, NO_MATCH).expected_hit
    new = request.prompt_tokens - held if request.prompt_tokens > held else 1
    prompt = computes.cost.scalars.prefill_seconds(new, held)
    if request.kind not in GENERATES:
        return new, prompt, 0.0
    scalars = decode.cost.scalars
    token = (
        scalars.step / max(LEAST_BATCH, decode.load.requests)
        + scalars.step_request
        + scalars.kv_token * (request.prompt_tokens + request.expected_output / 2)
    )
    return new, prompt, token


@dataclass(slots=True, eq=False)
class Entry(Waiting):
    """A request that came to the queue. ``Entry.of`` makes it; from then on only ``HeldQueue`` changes it.

    ``call``: its keys and request; None from its placement on, since it has the prompt. ``plan``: by which it waits or
    was placed. ``where``: the endpoint for whose room it waits, or waited last; None: it was placed at once.
    ``reason``: which of that one's bounds is the obstacle (``prefill``, ``kv``, ``step``); ``turn``: others are before
    it; ``down``: no endpoint is up. ``began``: Clock.monotonic() when it began to wait; ``waited``: seconds, 0 if it
    was placed at once. ``planned_at``: when it was planned last; ``moves``: how often for another endpoint than before.

    ``offered``: it was offered to all other endpoints, since half of its time to be placed had passed.

    ``new_tokens``: prompt tokens to compute, at least 1. ``prompt_cost``, ``token_cost``: engine seconds of these, and
    of one token of its answer, of which ``cost`` is made.
    """

    call: Placeable | None = None
    state: State = State.NEW
    plan: Plan | None = None
    where: Endpoint | None = None
    reason: str = ""
    began: float = 0.0
    waited: float = 0.0
    planned_at: float = 0.0
    moves: int = 0
    offered: bool = False
    new_tokens: int = 1
    prompt_cost: float = 0.0
    token_cost: float = 0.0
    held: Held | None = None

    @classmethod
    def of(cls, call: Placeable, settings: QueueSettings, now: float, *, size: int = 0, timeout: float = inf) -> Self:
        """``now``: Clock.monotonic(). ``size``: bytes that are kept for it. ``timeout``: seconds from its arrival after
        which its client does not want it any more."""
        request = call.request
        deadline = min(now + settings.max_wait, request.arrived + timeout)
        return cls(request, 0.0, 0.0, now, deadline=deadline, size=size, call=call)

    def price(self, plan: Plan, settings: QueueSettings) -> None:
        """It is planned so: what it costs there, and until when it is in time.

        cost = prefill(new tokens, context) + expected output * token
        """
        request, scalars = self.request, plan.decode.cost.scalars
        self.plan = plan
        self.new_tokens, self.prompt_cost, self.token_cost = priced(request, plan)
        output = request.expected_output
        self.cost = self.prompt_cost + output * self.token_cost
        self.tokens = self.new_tokens + output
        slo = request.slo
        objective = settings.target if slo is None or slo.ttft is None else slo.ttft
        # Placed with a full window before it, it has its first token so much later.
        self.due = request.arrived + objective - self.prompt_cost - scalars.overhead - settings.window

    @property
    def halfway(self) -> float:
        """Half of the time from when it began to wait until it is late."""
        return self.began + (self.due - self.began) / 2

    def next_at(self, patience: float) -> float:
        """When something is next due for it while it waits."""
        due = inf if self.late else self.due if self.offered else self.halfway
        return min(due, self.planned_at + patience, self.deadline)

    def waits_no_more(self, state: State) -> None:
        """It was placed, or is over."""
        self.state, self.call = state, None
        self.request.ahead = NOTHING  # another attempt of it is not behind what was ahead of this one

    def leg_at(self, endpoint: Endpoint) -> str:
        """The kind of its planned leg there, as ``Room.binding`` has it: empty if one leg is all of it."""
        plan = self.plan
        return "" if plan is None or plan.prefill is None else PREFILL if plan.prefill is endpoint else DECODE
