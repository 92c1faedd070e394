"""One try of a call: what is booked for it, on which endpoints, and the legs that are under way there.

However it ends, ``end`` gives back all that it booked, once.
"""

from __future__ import annotations

from types import TracebackType

from gateway.api.body import JsonBody
from gateway.api.field_filter import asks_report
from gateway.api.usage import Usage
from gateway.core.observer import Observer
from gateway.fleet.load.booking import BOOKING_STEP
from gateway.framework import Endpoint, Outcome
from gateway.framework.request import DECODE, PREFILL
from gateway.placement.placing import Placement
from gateway.proxy.serving.call import Call
from gateway.proxy.serving.decisions import DecisionRecord
from gateway.proxy.serving.learning import compare, learn_from
from gateway.proxy.serving.prefill_result import PrefillResult
from gateway.proxy.serving.timeline import NOT_TOLD, Event, Timeline
from gateway.proxy.upstream.legs import LegFailed, Retries
from gateway.scheduling.scheduler import Scheduler


class Attempt:
    """As a context manager it gives back what is booked, if that was not done before, when an error ends it.

    ``placement``: what is booked now. ``record``: of its decision, which gets its result. ``retries``: whether there
    may be another attempt.
    ``prefill_result``: a prefill's answer that is not used yet. ``sent_as``: the legs' ``x-request-id``, if it is not
    the call's id. ``under_way``: the endpoint of each leg that was sent and has not ended, by kind. ``reports``: the
    engine is requested to announce the prompt's blocks again. ``broken``: how its answer broke off after commit.
    ``over``: it has given everything back.
    """

    __slots__ = (
        *("_observer", "_outputs_due", "_scheduler", "broken", "call", "model_name", "over"),
        *("placement", "plan", "prefill_result", "record", "reports", "retries", "sent_as", "timeline", "under_way"),
    )

    def __init__(
        self,
        call: Call,
        timeline: Timeline,
        placement: Placement,
        record: DecisionRecord,
        retries: Retries,
        scheduler: Scheduler,
        observer: Observer,
        before: Attempt | None = None,
    ) -> None:
        """It is placed: this is entered into the timeline, and plugins are notified. ``before``: the attempt that
        failed, if any: what of it is still of use goes on."""
        self.call = call
        self.model_name = call.runtime.model.name
        self.timeline = timeline
        self.plan = plan = placement.plan
        self.placement = placement
        self.record = record
        self.retries = retries
        self.prefill_result: PrefillResult | None = None
        self.sent_as = ""
        if before is not None:
            self.sent_as = before.sent_as
            if (result := before.prefill_result) is not None and result.prefill is plan.prefill:
                self.prefill_result = result
        self.under_way: dict[str, Endpoint] = {}
        self.reports = False
        self.broken: LegFailed | None = None
        self.over = False
        self._outputs_due = 0  # as many must have come before the ledger is updated again
        self._scheduler = scheduler
        self._observer = observer
        record.book(placement.computes)
        record.agrees = call.request.exact and call.exact_on(plan.decode)
        timeline.happened(Event.PLACED)
        observer.placed(self.model_name, plan.reason, record.seconds)
        if isinstance(call.body, JsonBody) and "vllm_xargs" in call.body.fields:
            self.reports = asks_report(call.body.fields)
        if scheduler.on_placed:
            scheduler.placed(call.request, plan)

    def __enter__(self) -> Attempt:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.over:
            return
        if isinstance(error, LegFailed):  # there may be another attempt: the request goes on
            self.timeline.happened(Event.ATTEMPT_FAILED)
            self.end(error.result)
            return
        if error is not None:
            self.timeline.ended_by(error)
        self.end(self.timeline.outcome)

    def headers(self) -> list[tuple[str, str]]:
        """What an answer's head has beside the engine's own: its id, what is left of the client's limits, and what
        plugins tell the client."""
        headers = [("x-request-id", self.call.id)]
        if (grant := self.timeline.grant) is not None:
            headers += grant.headers()
        if self._scheduler.answering:
            headers += self._scheduler.answer_headers(self.call.request, self.plan)
        return headers

    # Its legs

    def sent(self, leg: str, endpoint: Endpoint) -> None:
        """A leg, by its kind, goes out to ``endpoint``."""
        self.under_way[leg] = endpoint
        if self.reports:
            self.call.runtime.index.expect_report(endpoint.slot, self.call.keys)
        if self.timeline.sent_at is None:  # the first one ends our own time before any engine had the request
            self.timeline.sent_at = self.timeline.clock.monotonic()

    def leg_ended(self, leg: str, result: str) -> None:
        """A leg is over; harmless if it was before, or was never sent."""
        if (endpoint := self.under_way.pop(leg, None)) is not None:
            if self.reports and result != "ok":
                self.call.runtime.index.cancel_report(endpoint.slot, self.call.keys)
            self._observer.attempted(self.model_name, endpoint.name, leg, result)

    def prefilled(self, result: str, *, usage: Usage | None = None, seconds: float | None = None) -> None:
        """The prefill leg has ended, or will not be sent; harmless if it had before.

        ``seconds``: what it took, where that was the prompt's computing and nothing else.
        """
        self.leg_ended(PREFILL, result)
        if (work := self.placement.ended(PREFILL, ok=result == "ok", seconds=seconds)) is None:
            return
        if seconds is not None:
            self.timeline.prefill_time = seconds
            self._observer.prefilled(self.model_name, seconds)
        compare(self.call, self.timeline, self.record, work, usage)
        work.blocks.end()
        if self.timeline.queued is not None:
            self.timeline.queued.freed(work.endpoint)

    def done(self, leg: str, result: str) -> None:
        """A leg before the decode leg has ended, or will not be sent; harmless if it had before. Of a prefill leg that
        may teach something, ``prefilled`` says more."""
        self.leg_ended(leg, result)
        if (work := self.placement.ended(leg, ok=result == "ok")) is not None:
            work.blocks.end()

    def falls_back(self, cause: str) -> None:
        """The hand-over failed: the decode endpoint computes the prompt, from now on."""
        self.timeline.happened(Event.FELL_BACK)
        self.prefilled("cancelled")
        self.leg_ended(DECODE, "cancelled")
        self.timeline.fallback = cause
        self.placement.falls_back(self.timeline.clock.monotonic())
        self.record.book(self.placement.computes)
        self._observer.fell_back(self.model_name, cause)

    # Its answer

    def forget_prompt(self) -> None:
        """Its answer has begun and may take an hour: drop its body and its ids."""
        self.call = self.call.without_prompt()

    def progressed(self, outputs: int) -> None:
        """A stream has brought ``outputs`` events that carry output, in all."""
        timeline = self.timeline
        if outputs <= timeline.outputs:
            return
        timeline.outputs = outputs
        if outputs < self._outputs_due:
            return
        if timeline.first_output_at is None:
            timeline.first_output_at = timeline.clock.monotonic()
            timeline.outputs_at_first = outputs
            self.placement.decode.computed()
            if timeline.queued is not None:
                timeline.queued.first_token(self.placement.decode, timeline.first_output_at)
        per_event = self.call.runtime.model.event_tokens
        self.placement.decode.set_generated(round(outputs * per_event))
        self._outputs_due = outputs + max(1, int(BOOKING_STEP / per_event))

    def answered(self, status: int, usage: Usage | None, *, error: bool = False, apart: int = 0) -> None:
        """The engine's answer is complete, though its client may have to read it yet: the engine is free again.

        ``error``: the answer is a stream that holds an error. ``apart``: events that were counted as output and only
        told the usage.
        """
        self.timeline.outputs -= apart
        self.timeline.answered(status, usage, error=error)
        if usage is not None and usage.output_tokens is not None:
            self.placement.decode.set_generated(usage.output_tokens, exact=True)
        self.end(self.timeline.outcome)

    def broke(self, failure: LegFailed) -> None:
        """After commit: the client has a part of the answer."""
        self.broken = failure
        self.timeline.outcome, self.timeline.error = "broken", f"{failure.cause}: {failure.detail}"
        self.timeline.charge()
        self.end(str(failure.cause))

    def not_told(self, outcome: str, status: int) -> None:
        """The gateway that carries its answer did not tell how that ended (``timeline.NOT_TOLD``): by now it has, as
        far as is known. ``status``: of the answer; 0: not told either."""
        self.timeline.status, self.timeline.outcome = status, outcome
        self.timeline.charge()
        self.end(outcome)

    # Its end

    def end(self, result: str) -> None:
        """Learn from what has ended well, give back what is booked, and record how the attempt ended. Harmless if it
        has ended."""
        if self.over:
            return
        try:
            if result == "ok":
                learn_from(self.call, self.timeline, self.placement, self.record)
        finally:  # a defect in what is learned must not keep a place for ever
            for leg in self.plan.legs[:-1]:
                self.done(leg.kind, "cancelled")
            self.over = True
            self.placement.end(ok=result == "ok" or result in NOT_TOLD)
            self.leg_ended(DECODE, result)
            self.record.result, self.record.first_output_at = result, self.timeline.first_output_at
            if self._scheduler.on_settled:
                self._scheduler.settled(self.call.request, self.plan, _outcome(self.timeline, result))


def _outcome(timeline: Timeline, result: str) -> Outcome:
    """What plugins are told of an attempt that ended with ``result``."""
    usage, figures = timeline.usage, timeline.figures()
    return Outcome(
        outcome=result,
        status=timeline.status,
        duration=figures.duration,
        ttft=figures.ttft,
        prompt_tokens=usage.prompt_tokens if usage else None,
        cached_tokens=usage.cached_tokens if usage else None,
        output_tokens=figures.output_tokens,
    )
