"""What was seen of a request: when what came, how much, and how it ended. And the phases that it goes through."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Mapping
from enum import StrEnum

import msgspec

from gateway.api.usage import Usage
from gateway.core.observer import Hit
from gateway.errors import GatewayError
from gateway.framework import Clock, Kind, Request
from gateway.proxy.serving.client import ClientGone
from gateway.proxy.serving.decisions import DecisionRecord
from gateway.proxy.serving.in_queue import InQueue
from gateway.tenants.gate import Grant


class Phase(StrEnum):
    """Where a request is; the value is a metric's label when its client leaves."""

    RECEIVING = "receiving"
    QUEUED = "queued"
    TOKENIZING = "tokenizing"
    HELD = "held"
    BEFORE_COMMIT = "before-commit"
    PREFILL = "prefill"
    STREAMING = "streaming"
    DONE = "done"


class Event(StrEnum):
    """What may happen to a request while it goes on. What ends it may happen in any phase, and is none of these: it is
    refused or fails, its client leaves, its stream breaks off."""

    QUEUED = "queued"
    ADMITTED = "admitted"
    TOKENIZED = "tokenized"
    HELD = "held"
    RELEASED = "released"
    PLACED = "placed"
    PREFILL_SENT = "prefill-sent"
    PREFILL_ENDED = "prefill-ended"
    FELL_BACK = "fell-back"
    ATTEMPT_FAILED = "attempt-failed"
    STREAM_COMMITTED = "stream-committed"
    ANSWERED = "answered"


NEXT: Mapping[Phase, Mapping[Event, Phase]] = {
    Phase.RECEIVING: {Event.QUEUED: Phase.QUEUED, Event.ADMITTED: Phase.TOKENIZING},
    Phase.QUEUED: {Event.ADMITTED: Phase.TOKENIZING},
    Phase.TOKENIZING: {Event.TOKENIZED: Phase.BEFORE_COMMIT},
    Phase.BEFORE_COMMIT: {
        Event.HELD: Phase.HELD,
        Event.PLACED: Phase.BEFORE_COMMIT,
        Event.PREFILL_SENT: Phase.PREFILL,
        Event.FELL_BACK: Phase.BEFORE_COMMIT,
        Event.ATTEMPT_FAILED: Phase.BEFORE_COMMIT,
        Event.STREAM_COMMITTED: Phase.STREAMING,
        Event.ANSWERED: Phase.DONE,
    },
    Phase.HELD: {Event.PLACED: Phase.BEFORE_COMMIT, Event.RELEASED: Phase.BEFORE_COMMIT},
    Phase.PREFILL: {Event.PREFILL_ENDED: Phase.BEFORE_COMMIT},
    Phase.STREAMING: {Event.ANSWERED: Phase.DONE},
    Phase.DONE: {},
}
"""Which events may come in each phase, and the phase that follows. ``prefill-sent`` and ``prefill-ended`` are of a
prefill leg that is answered before the decode leg is sent; ``answered`` is the answer's end."""


USES_NOTHING = frozenset({Kind.TOKENIZE, Kind.DETOKENIZE})
"""The kinds of request for which nobody is charged tokens: no model computes any."""

ENDED, UNHEARD = "ended", "unheard"
"""Outcomes of a request that a gateway in front of us has carried: it told when the answer ended and not how, or
nothing of it."""

NOT_TOLD = frozenset({ENDED, UNHEARD})

GOT_SOMETHING = frozenset({"ok", "broken", "cancelled", *NOT_TOLD})
"""Outcomes in which an engine worked for the client, if it was asked: what else fails is not the client's to pay."""


class Figures(msgspec.Struct, frozen=True):
    """What a request took, in seconds, and what it brought.

    ``duration``: since its arrival. ``overhead``: our own before a leg went out, without the body's way and the queue.
    ``ttft``: from its arrival to the first event that carries output; None where nothing was streamed.
    ``output_tokens``: by the engine's count, else the events of a stream; None where neither is known.
    """

    duration: float
    overhead: float
    ttft: float | None
    output_tokens: int | None


# 22 fields: each is one fact of one request, and a group of them would cost every request one more object
class Timeline(msgspec.Struct, eq=False):
    """Times are of ``clock.monotonic()``, None until they happen.

    ``queue_wait``: seconds, before it was tokenized and before it was placed. ``queued``: its place in its model's
    queue; None: the model has none, or it has not come to it.
    ``request``: None until it is known what is requested, and of which model. ``records``: of its decisions, one an
    attempt, in order; the last one may have come to no plan. ``hits``, ``counted``: as in ``Settled``.
    ``prefill_time``: seconds of a separate prefill.
    ``fallback``: why a planned hand-over did not happen. ``by_ids``: an engine got our ids instead of the prompt's
    text, so that its count is ours. ``outputs``: events of a stream that carry output; ``outputs_at_first``: as many
    came with the first. ``grant``: of its tenant's limits; None: it has none, or has not come so far.
    """

    clock: Clock
    arrived: float
    phase: Phase = Phase.RECEIVING
    received_at: float | None = None
    request: Request | None = None
    queue_wait: float = 0.0
    queued: InQueue | None = None
    records: tuple[DecisionRecord, ...] = ()
    sent_at: float | None = None
    prefill_time: float | None = None
    fallback: str = ""
    by_ids: bool = False
    first_output_at: float | None = None
    outputs: int = 0
    outputs_at_first: int = 0
    usage: Usage | None = None
    status: int = 0
    outcome: str = "ok"
    error: str | None = None
    hits: tuple[Hit, ...] = ()
    counted: int | None = None
    grant: Grant | None = None

    def happened(self, event: Event) -> None:
        """Raises ValueError where ``event`` cannot come in the present phase: a defect of ours."""
        phase = NEXT[self.phase].get(event)
        if phase is None:
            raise ValueError(f"a request that is {self.phase} cannot be {event}")
        self.phase = phase

    def answered(self, status: int, usage: Usage | None, *, error: bool = False) -> None:
        """The engine's answer is complete. ``error``: it is a stream that holds one."""
        self.happened(Event.ANSWERED)
        self.status, self.usage = status, usage
        if status >= 400 or error:
            self.outcome = "engine_error"
        if self.grant is not None:
            self.charge()

    def charge(self) -> None:
        """It uses no more: give back what its tenant's limits hold for it, and charge what it used; harmless if that
        is done.

        What the engine reports counts; where it reports nothing, our own count of what was sent and what came back; and
        where nobody told what came back, as many tokens as were expected.
        """
        grant, request = self.grant, self.request
        if grant is None or grant.charge is not None or request is None:
            return
        usage, prompt, cached, output = self.usage, 0, 0, 0
        if usage is not None or (self.sent_at is not None and (self.outcome in GOT_SOMETHING or self.outputs)):
            prompt, output = request.prompt_tokens, round(self.outputs * request.model.event_tokens)
            if self.outcome in NOT_TOLD:
                output = round(request.expected_output)
        if usage is not None:
            prompt = prompt if usage.prompt_tokens is None else usage.prompt_tokens
            output = output if usage.output_tokens is None else usage.output_tokens
            cached = usage.cached_tokens or 0
        if request.kind in USES_NOTHING:
            prompt = cached = output = 0
        grant.settle(prompt, cached, output)

    def ended_by(self, error: BaseException) -> None:
        """``error`` ends the request; harmless when repeated. A client that leaves is a 499, as nginx logs it; that its
        answer had broken off before stays."""
        if isinstance(error, GatewayError):
            self.status, self.outcome, self.error = error.status, error.outcome, error.message
        elif not isinstance(error, CancelledError | ClientGone):
            self.status, self.outcome = 500, "bug"
        elif self.outcome != "broken":
            self.status, self.outcome = 499, "cancelled"

    def figures(self) -> Figures:
        """As of now."""
        overhead, ttft, tokens = 0.0, None, None
        if self.sent_at is not None:
            ready_at = self.received_at if self.received_at is not None else self.arrived
            overhead = max(0.0, self.sent_at - ready_at - self.queue_wait)
        if self.first_output_at is not None:
            ttft = self.first_output_at - self.arrived
        if self.usage is not None:
            tokens = self.usage.output_tokens
        if tokens is None:
            tokens = self.outputs or None
        return Figures(self.clock.monotonic() - self.arrived, overhead, ttft, tokens)

    @property
    def outputs_since_first(self) -> int:
        """Events that carry output behind the first; 0 where they are too few to tell the time between two of them.

        Those that came together with the first are not counted: an engine or a proxy that was held up hands over many
        at once, and nothing can be told of the time between them.
        """
        since = self.outputs - self.outputs_at_first
        return since if since > 1 else 0
