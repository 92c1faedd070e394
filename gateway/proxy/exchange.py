"""One request from its head to its end: the object that owns all its state.

Whatever happens, ``settle`` gives everything back exactly once: the permit, the reservation, what was learned. Nothing
else keeps a reference to any of them.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from msgspec import Raw

from gateway.api.body import Body, JsonBody
from gateway.api.passing import ask_report, asks_report
from gateway.api.routes import Route
from gateway.api.usage import Usage
from gateway.errors import GatewayError
from gateway.fleet.booking import BOOKED, Booking
from gateway.fleet.fleet import Fleet
from gateway.flow.admission import Permit
from gateway.framework import GENERATES, Clock, Endpoint, Observer, Plan, Prompt, Request
from gateway.kvcache.keys import BlockKeys
from gateway.proxy.decisions import Decision
from gateway.proxy.directory import Serving
from gateway.proxy.learning import compare, learn
from gateway.proxy.legs import Attempts, HeldAnswer, Leg, LegFailed
from gateway.proxy.memory import Share
from gateway.proxy.placement import Parcel, Placement
from gateway.proxy.record import line, told
from gateway.scheduling.scheduler import Scheduler
from gateway.tokens.agreement import Form

NO_IDS = array("I")


class Phase(StrEnum):
    """Where a request is; the value is a metric's label when its client leaves."""

    RECEIVING = "receiving"
    QUEUED = "queued"
    TOKENIZING = "tokenizing"
    PREFILL = "prefill"
    BEFORE_COMMIT = "before-commit"
    STREAMING = "streaming"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Questions:
    """``legs``: to be asked in turn, which ids an engine makes of the body. ``ids``: what ours are, of a prompt of this
    ``form``."""

    legs: Sequence[Leg]
    ids: array[int]
    form: Form


@dataclass(slots=True, eq=False)
class Exchange:
    """The state of one request. Times are of ``clock.monotonic()``, None until they happen.

    ``placement``: what is booked now. ``plan`` and ``booked``: the last one's plan, and where its prompt was to be
    computed, for the record. ``decision``: the last one, which is told what became of it. ``under_way``: legs that were
    sent and have not ended. ``headers``: the client's. ``home``: URL of the only engine that can serve it. ``sent_as``:
    the legs' ``x-request-id``. ``sequences``: answers asked for. ``extras``: the body's ``vllm_xargs`` for this
    placement, where they are not the client's alone; ``reports``: whether what is sent asks for a report. ``by_ids``:
    an engine got our ids instead of the prompt's text, so that its count is ours. ``own_tokens``: as many our tokenizer
    made of it. ``questions``: to an engine, once it is settled. ``legs``: placements. ``parcel``: a
    prefill's answer that is not used yet. ``prefill_time``: seconds of a separate prefill. ``fallback``: why a planned
    hand-over did not happen. ``outputs_due``: as many must have come before the ledger is told again.
    """

    id: str
    route: Route
    clock: Clock
    observer: Observer
    scheduler: Scheduler
    arrived: float
    share: Share
    phase: Phase = Phase.RECEIVING
    serving: Serving | None = None
    request: Request | None = None
    body: Body | None = None
    prompt: Prompt | None = None
    keys: BlockKeys | None = None
    permit: Permit | None = None
    attempts: Attempts | None = None
    home: str | None = None
    placement: Placement | None = None
    plan: Plan | None = None
    booked: Booking | None = None
    decision: Decision | None = None
    under_way: dict[str, Endpoint] = field(default_factory=dict)
    headers: list[tuple[str, str]] = field(default_factory=list)
    parcel: Parcel | None = None
    failure: LegFailed | None = None
    broken: LegFailed | None = None
    held: HeldAnswer | None = None
    sent_as: str = ""
    sequences: int = 1
    extras: Mapping[str, Raw] | None = None
    reports: bool = False
    by_ids: bool = False
    own_tokens: int | None = None
    questions: Questions | None = None
    legs: int = 0
    queue_wait: float = 0.0
    received_at: float | None = None
    sent_at: float | None = None
    first_output_at: float | None = None
    outputs: int = 0
    outputs_at_first: int = 0
    outputs_due: int = 0
    prefill_time: float | None = None
    fallback: str | None = None
    usage: Usage | None = None
    status: int = 0
    outcome: str = "ok"
    error: str | None = None
    _settled: bool = field(default=False, repr=False)

    # What happens to it, in order

    def received(self) -> None:
        self.received_at = self.clock.monotonic()

    def place(self, plan: Plan, fleet: Fleet, *, prefilled: bool) -> None:
        """Book the work. The caller read the loads in the same step of the loop, without an await between.

        ``prefilled``: the plan's prefill leg has been answered already.
        """
        assert self.request is not None
        assert self.serving is not None
        assert self.keys is not None
        request, now = self.request, self.clock.monotonic()
        index, keys = self.serving.index, self.keys
        decode, use = Booking.make(request, plan.decode, fleet, now), index.placed(keys, plan.decode)
        placement = Placement(plan, decode, use, split=plan.prefill is not None)
        self.booked = decode
        if plan.prefill is None:
            placement.decode.computes(now, told=request.stream)
        elif not prefilled:
            placement.prefill = self.booked = Booking.make(request, plan.prefill, fleet, now)
            placement.prefill.computes(now, told=True)
            placement.prefill_use = index.placed(keys, plan.prefill)
            self.observer.in_flight(plan.prefill.name, 1)
        self.placement, self.plan = placement, plan
        self.legs += 1
        self._expect_report(plan, keys)
        self.scheduler.placed(request, plan)
        self.observer.planned(self.model_name, plan.reason)
        self.observer.in_flight(plan.decode.name, 1)

    def _expect_report(self, plan: Plan, keys: BlockKeys) -> None:
        """Its client has the engine announce again what it holds of the prompt, or we do, where we cannot know it."""
        self.extras, self.reports = None, False
        if self.serving is None or self.prompt is None or not isinstance(self.body, JsonBody):
            return
        if "vllm_xargs" in self.body.fields and asks_report(self.body.fields):
            self.reports = True
        # One prompt, which the engine looks up once: what each report is of must be known.
        elif (
            self.serving.index.may_ask(plan.decode.slot)
            and plan.prefill is None
            and self.route.kind in GENERATES
            and self.prompt.single
            and self.sequences == 1
        ):
            extras = ask_report(self.body.fields)
            if extras is not None and self.serving.index.asks(plan.decode.slot, keys):
                self.extras, self.reports = extras, True

    def prefilled(self, result: str, *, usage: Usage | None = None, seconds: float | None = None) -> None:
        """The prefill leg has ended, or will not be sent; harmless if it had before.

        ``seconds``: what it took, where that was the prompt's computing and nothing else.
        """
        self.ended("prefill", result)
        placement = self.placement
        if placement is None or placement.prefill is None or placement.prefill_use is None:
            return
        booking, placement.prefill = placement.prefill, None
        use, placement.prefill_use = placement.prefill_use, None
        booking.reservation.settle()
        if result == "ok":
            use.computed()
        self.observer.in_flight(booking.endpoint.name, -1)
        if seconds is not None:
            self.prefill_time = seconds
            self.observer.prefilled(self.model_name, seconds)
            booking.learn_prefill(seconds)
            booking.cost.ended()
        compare(self, booking, use, usage)
        use.end()

    def falls_back(self, cause: str) -> None:
        """The hand-over failed: the decode endpoint computes the prompt, from now on."""
        assert self.placement is not None
        assert self.request is not None
        self.prefilled("cancelled")
        self.ended("decode", "cancelled")
        self.fallback = cause
        self.placement.split = False
        self.booked = self.placement.decode
        self.placement.decode.computes(self.clock.monotonic(), told=self.request.stream)
        if self.decision is not None:
            self.decision.book(self.booked)
        self.observer.fell_back(self.model_name, cause)

    def sent(self, leg: str, endpoint: Endpoint) -> None:
        """A leg (``prefill`` or ``decode``) goes out to ``endpoint``."""
        self.under_way[leg] = endpoint
        if self.reports and self.serving is not None and self.keys is not None:
            self.serving.index.reannounced(endpoint.slot, self.keys)
        if self.sent_at is None:
            self.sent_at = self.clock.monotonic()

    def ended(self, leg: str, result: str) -> None:
        """A leg is over; harmless if it was before, or was never sent."""
        if (endpoint := self.under_way.pop(leg, None)) is not None:
            if self.reports and result != "ok" and self.serving is not None and self.keys is not None:
                self.serving.index.not_reannounced(endpoint.slot, self.keys)
            self.observer.attempted(self.model_name, endpoint.name, leg, result)

    def forget_prompt(self) -> None:
        """Its answer has begun and may take an hour: all that is still of use are its counts and its keys."""
        assert self.prompt is not None
        assert self.request is not None
        self.body, self.extras, self.headers = None, None, []
        self.share.release()
        self.prompt = replace(self.prompt, ids=NO_IDS, own=None, media=())
        self.request.token_ids = NO_IDS

    def progressed(self, outputs: int) -> None:
        """A stream has brought ``outputs`` events that carry output, in all."""
        if outputs <= self.outputs:
            return
        self.outputs = outputs
        if outputs < self.outputs_due:
            return
        assert self.placement is not None
        assert self.serving is not None
        if self.first_output_at is None:
            self.first_output_at = self.clock.monotonic()
            self.outputs_at_first = outputs
            self.placement.decode.first_token()
            self.placement.decode_use.computed()
        per_event = self.serving.model.event_tokens
        self.placement.decode.reservation.generated(round(outputs * per_event))
        self.outputs_due = outputs + max(1, int(BOOKED / per_event))

    # How it can end

    def answered(self, status: int, usage: Usage | None, *, error: bool = False, apart: int = 0) -> None:
        """The engine's answer is complete, though its client may have to read it yet: the engine is free again.

        ``error``: the answer is a stream that holds an error. ``apart``: events that were counted as output and only
        told the usage.
        """
        self.outputs -= apart
        self.phase = Phase.DONE
        self.status = status
        self.usage = usage
        if self.placement is not None and usage is not None and usage.output_tokens is not None:
            self.placement.decode.reservation.generated(usage.output_tokens, exact=True)
        if status >= 400 or error:
            self.outcome = "engine_error"
        self._conclude()

    def failed(self, error: GatewayError) -> None:
        self.status, self.outcome, self.error = error.status, error.outcome, error.message

    def broke(self, failure: LegFailed) -> None:
        """After commit: the client has a part of the answer."""
        self.failure = self.broken = failure
        self.outcome, self.error = "broken", f"{failure.cause}: {failure.detail}"
        self.end_placement(str(failure.cause))

    def cancelled(self) -> None:
        """The client went away: 499 is what nginx logs for it. That its answer had broken before stays."""
        if self.broken is None:
            self.status, self.outcome = 499, "cancelled"
        self.observer.disconnected(self.model_name, str(self.phase))

    @property
    def model_name(self) -> str:
        return self.serving.model.name if self.serving is not None else ""

    def exact_on(self, endpoint: Endpoint) -> bool:
        """Whether the prompt's ids are those that the engine at ``endpoint`` makes of it."""
        prompt = self.prompt
        return prompt is not None and prompt.exact and endpoint.name not in prompt.differing

    def end_placement(self, result: str) -> None:
        """Give back what was booked on the endpoint, and say how the leg ended. Harmless if there is none."""
        if self.placement is None:
            return
        assert self.request is not None
        if self.placement.prefill is not None or "prefill" in self.under_way:
            self.prefilled("cancelled")
        placement, self.placement = self.placement, None
        endpoint = placement.decode.endpoint
        placement.decode.reservation.settle()
        if result == "ok":
            placement.decode_use.computed()
        placement.decode_use.end()
        self.observer.in_flight(endpoint.name, -1)
        self.ended("decode", result)
        if self.decision is not None:
            self.decision.ended(result, self.first_output_at)
        if self.scheduler.tells:
            self.scheduler.settled(self.request, placement.plan, told(self, result))

    def settle(self) -> None:
        """Release, learn, count; once."""
        if self._settled:
            return
        self._settled = True
        try:
            self._conclude()
        finally:
            self.share.release()
            if self.permit is not None:
                self.permit.leave()
            settled = line(self)
            if self.decision is not None:
                self.decision.settled = settled
            self.observer.settled(settled)

    def _conclude(self) -> None:
        """Learn from the placement, and give back what was booked for it; nothing if that was done before."""
        placement = self.placement
        try:
            if placement is not None and self.outcome == "ok":
                learn(self, placement)
        finally:  # a defect in what is learned must not keep a place for ever
            self.end_placement(self.outcome)

    # What it took

    @property
    def ttft(self) -> float | None:
        """Seconds from arrival to the first event that carries output; None where nothing was streamed."""
        return None if self.first_output_at is None else self.first_output_at - self.arrived

    def events_since_first(self) -> int:
        """Events that carry output behind the first; 0 where they are too few to tell the time between two of them.

        Those that came together with the first are not counted: an engine or a proxy that was held up hands over many
        at once, and nothing can be told of the time between them.
        """
        since = self.outputs - self.outputs_at_first
        return since if self.first_output_at is not None and since > 1 else 0

    @property
    def output_tokens(self) -> int | None:
        if self.usage is not None and self.usage.output_tokens is not None:
            return self.usage.output_tokens
        return self.outputs or None
