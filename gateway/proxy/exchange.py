"""One request from its head to its end: the object that owns all its state.

Whatever happens, ``settle`` gives everything back exactly once: the permit, the reservation, what was learned. Nothing
else keeps a reference to any of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from gateway.api.body import Body
from gateway.api.routes import Route
from gateway.api.usage import Usage
from gateway.errors import GatewayError
from gateway.fleet.cost import FittedCost
from gateway.fleet.ledger import Ledger, Reservation
from gateway.flow.admission import Permit
from gateway.framework import GENERATES, Clock, Observer, Outcome, Plan, Prompt, Request, Settled
from gateway.kvcache.keys import BlockKeys
from gateway.proxy.directory import Serving
from gateway.proxy.legs import Attempts, LegFailed
from gateway.scheduling.scheduler import Scheduler

LEARNING_RATE = 0.05
"""Of a model's expected output: the last 20 answers weigh about two thirds."""


class Phase(StrEnum):
    """Where a request is; the value is a metric's label when its client leaves."""

    RECEIVING = "receiving"
    QUEUED = "queued"
    TOKENIZING = "tokenizing"
    BEFORE_COMMIT = "before-commit"
    STREAMING = "streaming"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class HeldAnswer:
    """An engine's 502, 503 or 504: the client's, should no other endpoint do better."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes


@dataclass(slots=True)
class Placement:
    """A request on an endpoint: what was booked there, and what was known when it was."""

    plan: Plan
    reservation: Reservation
    cost: FittedCost
    at: float
    expected_hit: int
    new_tokens: int
    running: float
    kv_tokens: float


@dataclass(slots=True, eq=False)
class Exchange:
    """The state of one request. Times are of ``clock.monotonic()``, None until they happen.

    ``placement``: what is booked now. ``placed``: the last of those, for the record. ``sequences``: answers asked for.
    """

    id: str
    route: Route
    clock: Clock
    observer: Observer
    scheduler: Scheduler
    arrived: float
    phase: Phase = Phase.RECEIVING
    serving: Serving | None = None
    request: Request | None = None
    body: Body | None = None
    prompt: Prompt | None = None
    keys: BlockKeys | None = None
    permit: Permit | None = None
    attempts: Attempts | None = None
    placement: Placement | None = None
    placed: Placement | None = None
    failure: LegFailed | None = None
    broken: LegFailed | None = None
    held: HeldAnswer | None = None
    sequences: int = 1
    legs: int = 0
    queue_wait: float = 0.0
    received_at: float | None = None
    sent_at: float | None = None
    first_output_at: float | None = None
    outputs: int = 0
    outputs_at_first: int = 0
    usage: Usage | None = None
    status: int = 0
    outcome: str = "ok"
    error: str | None = None
    _settled: bool = field(default=False, repr=False)

    # What happens to it, in order

    def received(self) -> None:
        self.received_at = self.clock.monotonic()

    def place(self, plan: Plan, ledger: Ledger, cost: FittedCost) -> None:
        """Book the work. The caller read the loads in the same step of the loop, without an await between."""
        assert self.request is not None
        assert self.serving is not None
        assert self.keys is not None
        request, endpoint = self.request, plan.decode
        now = self.clock.monotonic()
        new = request.new_tokens(endpoint) if request.kind in GENERATES else request.prompt_tokens
        hit = request.matches[endpoint.slot].expected_hit
        running = endpoint.load.requests + endpoint.load.foreign_requests
        kv_tokens = endpoint.load.kv_tokens + endpoint.load.foreign_kv_tokens
        predicted = cost.ttft(endpoint.load, new, hit)
        self.placement = self.placed = Placement(
            plan=plan,
            reservation=ledger.reserve(
                prefill_tokens=new,
                kv_tokens=request.prompt_tokens,
                expires_prefill_at=None if request.stream else now + predicted,
            ),
            cost=cost,
            at=now,
            expected_hit=hit,
            new_tokens=new,
            running=running,
            kv_tokens=kv_tokens,
        )
        self.legs += 1
        self.serving.index.placed(self.keys, endpoint)
        self.scheduler.placed(request, plan)
        self.observer.in_flight(endpoint.name, 1)

    def sent(self) -> None:
        if self.sent_at is None:
            self.sent_at = self.clock.monotonic()

    def progressed(self, outputs: int) -> None:
        """A stream has brought ``outputs`` events that carry output, in all."""
        if outputs <= self.outputs:
            return
        self.outputs = outputs
        assert self.placement is not None
        if self.first_output_at is None:
            self.first_output_at = self.clock.monotonic()
            self.outputs_at_first = outputs
            self.placement.reservation.first_token()
        self.placement.reservation.generated(outputs)

    # How it can end

    def answered(self, status: int, usage: Usage | None, *, error: bool = False) -> None:
        """The engine's answer is complete, though its client may have to read it yet: the engine is free again.

        ``error``: the answer is a stream that holds an error.
        """
        self.phase = Phase.DONE
        self.status = status
        self.usage = usage
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
        """The client went away: 499 is what nginx logs for it."""
        self.status, self.outcome = 499, "cancelled"
        self.observer.disconnected(self.model_name, str(self.phase))

    @property
    def model_name(self) -> str:
        return self.serving.model.name if self.serving is not None else ""

    def end_placement(self, result: str) -> None:
        """Give back what was booked on the endpoint, and say how the leg ended. Harmless if there is none."""
        placement, self.placement = self.placement, None
        if placement is None:
            return
        assert self.request is not None
        endpoint = placement.plan.decode
        placement.reservation.settle()
        self.observer.in_flight(endpoint.name, -1)
        self.observer.attempted(self.model_name, endpoint.name, "decode", result)
        self.scheduler.settled(self.request, placement.plan, self._told(result))

    def settle(self) -> None:
        """Release, learn, count; once."""
        if self._settled:
            return
        self._settled = True
        try:
            self._conclude()
        finally:
            if self.permit is not None:
                self.permit.leave()
            self.observer.settled(self._line())

    def _conclude(self) -> None:
        """Learn from the placement, and give back what was booked for it; nothing if that was done before."""
        placement = self.placement
        try:
            if placement is not None and self.outcome == "ok":
                self._learn(placement)
        finally:  # a defect in what is learned must not keep a place for ever
            self.end_placement(self.outcome)

    def _learn(self, placement: Placement) -> None:
        assert self.request is not None
        assert self.serving is not None
        assert self.prompt is not None
        assert self.keys is not None
        endpoint, usage, model = placement.plan.decode, self.usage, self.serving.model
        if self.ttft is not None:
            # Prefill is served in order: what was queued ahead of us is in our time to first token.
            tokens = placement.reservation.ahead + placement.new_tokens
            placement.cost.learn_prefill(tokens, placement.expected_hit, self.ttft_of_leg(placement))
        step = self.time_per_token()
        if step is not None:
            placement.cost.learn_step(placement.running + 1, placement.kv_tokens + self.request.prompt_tokens, step)
        placement.cost.learn_nothing(prefill=self.ttft is None, step=step is None)
        output = usage.output_tokens if usage is not None and usage.output_tokens else self.outputs
        if self.request.kind in GENERATES and output:
            model.expected_output += LEARNING_RATE * (output / self.sequences - model.expected_output)
        if usage is None:
            return
        if usage.prompt_tokens is not None and self.prompt.exact:
            self.observer.tokens_compared(model.name, self.prompt.count, usage.prompt_tokens)
        if usage.cached_tokens is not None and self.prompt.single:
            self.serving.index.settled(self.keys, endpoint, placement.expected_hit, usage.cached_tokens)
            if self.prompt.exact:
                self.observer.hits_compared(model.name, endpoint.name, placement.expected_hit, usage.cached_tokens)

    # What it took

    @property
    def ttft(self) -> float | None:
        """Seconds from arrival to the first event that carries output; None where nothing was streamed."""
        return None if self.first_output_at is None else self.first_output_at - self.arrived

    def ttft_of_leg(self, placement: Placement) -> float:
        assert self.first_output_at is not None
        return self.first_output_at - placement.at

    def time_per_token(self) -> float | None:
        """Seconds between two events that carry output; None below three of them.

        Those that came together with the first are not counted: an engine or a proxy that was held up hands over many
        at once, and nothing can be told of the time between them.
        """
        since = self.outputs - self.outputs_at_first
        if self.first_output_at is None or since < 2:
            return None
        return (self.clock.monotonic() - self.first_output_at) / since

    def _output_tokens(self) -> int | None:
        if self.usage is not None and self.usage.output_tokens is not None:
            return self.usage.output_tokens
        return self.outputs or None

    def _told(self, result: str) -> Outcome:
        return Outcome(
            outcome=result,
            status=self.status,
            duration=self.clock.monotonic() - self.arrived,
            ttft=self.ttft,
            prompt_tokens=self.usage.prompt_tokens if self.usage else None,
            cached_tokens=self.usage.cached_tokens if self.usage else None,
            output_tokens=self._output_tokens(),
        )

    def _line(self) -> Settled:
        request, usage, placed = self.request, self.usage, self.placed
        endpoint = placed.plan.decode if placed is not None else None
        ready_at = self.received_at if self.received_at is not None else self.arrived
        return Settled(
            request_id=self.id,
            model=self.model_name,
            route=self.route.path,
            outcome=self.outcome,
            status=self.status,
            stream=request.stream if request else False,
            endpoint=endpoint.name if endpoint else None,
            attempts=self.legs,
            prompt_tokens=request.prompt_tokens if request else 0,
            exact=request.exact if request else False,
            expected_hit=placed.expected_hit if placed else 0,
            duration=self.clock.monotonic() - self.arrived,
            queue_wait=self.queue_wait,
            overhead=max(0.0, self.sent_at - ready_at - self.queue_wait) if self.sent_at is not None else 0.0,
            phase=str(self.phase),
            match_source=str(request.matches[endpoint.slot].source) if request and endpoint else "none",
            ttft=self.ttft,
            output_tokens=self._output_tokens(),
            reported_prompt_tokens=usage.prompt_tokens if usage else None,
            cached_tokens=usage.cached_tokens if usage else None,
            error=self.error,
        )
