"""Match, schedule, reserve: from a call to an attempt that is booked on its endpoints.

The queue of a model takes it in two steps, ``decide`` and ``book``, and looks for room between them. No await may lie
between them either.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from gateway.api.body import JsonBody
from gateway.core.observer import Observer
from gateway.errors import NO_ENDPOINT_RETRY, GatewayError, NoEndpoint
from gateway.flow.questions import Question, matches_of
from gateway.framework import Clock, Plan, Request
from gateway.placement.placing import book, decide
from gateway.proxy.serving.attempt import Attempt
from gateway.proxy.serving.call import Call
from gateway.proxy.serving.decisions import Decisions
from gateway.proxy.serving.model_directory import ModelDirectory
from gateway.proxy.serving.timeline import Timeline
from gateway.proxy.upstream.legs import Retries
from gateway.scheduling.scheduler import Scheduler
from gateway.scheduling.trace import Trace
from gateway.sharing.load_table import LoadTable


class Placer:
    """Holds no state of any request. ``rosters``: for a ``Trace``. ``loads``: what others have booked; None: this
    process decides alone. ``whole``: who carries the request can send it to one endpoint only: of a plan with several
    legs the decode endpoint does all of it."""

    def __init__(
        self,
        directory: ModelDirectory,
        scheduler: Scheduler,
        decisions: Decisions,
        clock: Clock,
        observer: Observer,
        loads: LoadTable | None = None,
        *,
        whole: bool = False,
    ) -> None:
        self._directory = directory
        self._scheduler = scheduler
        self._decisions = decisions
        self.rosters = decisions.rosters
        self._clock = clock
        self._observer = observer
        self._loads = loads
        self._whole = whole

    def place(self, call: Call, timeline: Timeline, retries: Retries, before: Attempt | None = None) -> Attempt:
        """Decide and book. No await in here: concurrent requests must see each other's reservations. ``before``: the
        attempt that failed, if any.

        Raises NoEndpoint, PluginFailed.
        """
        trace, began = Trace(self.rosters), self._clock.monotonic()
        try:
            plan = self.decide(call, timeline, retries, trace)
        except GatewayError as error:
            self.refused(call, error, timeline, trace, began)
            raise
        return self.book(call, plan, timeline, retries, trace, began, before)

    def decide(
        self, call: Call, timeline: Timeline, retries: Retries, trace: Trace, only: Collection[str] = ()
    ) -> Plan:
        """Where it would go now. ``trace``: is given what the plan is made of. ``only``: names of the endpoints on
        which it may; none: on any. Raises NoEndpoint, PluginFailed."""
        if self._loads is not None:
            self._loads.look(self._clock.monotonic())
        candidates = self._directory.eligible(call.request, call.pinned_url, retries.failed_on)
        if only:
            candidates = [endpoint for endpoint in candidates if endpoint.name in only]
            if not candidates:
                gone = ", ".join(sorted(only))
                raise NoEndpoint(f"None of {gone} may be used any more.", retry_after=NO_ENDPOINT_RETRY)
        form, fell_back = not isinstance(call.body, JsonBody), bool(timeline.fallback)
        index = call.runtime.index
        plan = decide(call, candidates, index, self._scheduler, trace, form=form, fell_back=fell_back)
        if self._whole and len(plan.legs) > 1:
            return replace(plan, legs=plan.legs[-1:], reason="picker")
        return plan

    def plan_for(self, question: Question, request: Request) -> Plan:
        """Where a ``request`` would go of which another worker asks. Raises NoEndpoint, PluginFailed."""
        if self._loads is not None:
            self._loads.look(self._clock.monotonic())
        candidates = self._directory.eligible(request, question.pinned_url)
        request.matches = matches_of(question, candidates)
        plan = self._scheduler.schedule(request, candidates, None)
        if question.form and len(plan.legs) > 1:
            return replace(plan, legs=plan.legs[-1:], reason="form")
        return plan

    def book(
        self,
        call: Call,
        plan: Plan,
        timeline: Timeline,
        retries: Retries,
        trace: Trace,
        began: float,
        before: Attempt | None = None,
    ) -> Attempt:
        """Book what was just decided, since ``began`` (Clock.monotonic()). ``before``: as for ``place``."""
        done = None if before is None else before.prefill_result
        prefilled = None if done is None else done.prefill
        now = self._clock.monotonic()
        placement = book(call, plan, call.runtime.index, now, prefilled=prefilled)
        try:
            if before is None:
                new, request = placement.computes.new_tokens, call.request
                call.runtime.demand.placed(now, request.prompt_tokens, new, request.expected_output)
            record = self._decisions.keep(call.request, plan, trace, len(timeline.records) + 1, began)
            timeline.records += (record,)
            return Attempt(call, timeline, placement, record, retries, self._scheduler, self._observer, before)
        except BaseException:  # a defect must not keep a place for ever
            placement.cancel()
            raise

    def refused(self, call: Call, error: GatewayError, timeline: Timeline, trace: Trace, began: float) -> None:
        """Keep that it came to no plan, or was refused in spite of one. ``trace``, ``began``: as for ``book``."""
        record = self._decisions.keep(call.request, error, trace, len(timeline.records) + 1, began)
        timeline.records += (record,)
