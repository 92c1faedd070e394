"""Match, schedule, reserve: from a call to an attempt that is booked on its endpoints."""

from __future__ import annotations

from gateway.api.body import JsonBody
from gateway.core.observer import Observer
from gateway.errors import GatewayError
from gateway.framework import Clock
from gateway.placement.placing import book, decide
from gateway.proxy.serving.attempt import Attempt
from gateway.proxy.serving.call import Call
from gateway.proxy.serving.decisions import Decisions
from gateway.proxy.serving.model_directory import ModelDirectory
from gateway.proxy.serving.timeline import Timeline
from gateway.proxy.upstream.legs import Retries
from gateway.scheduling.scheduler import Scheduler
from gateway.scheduling.trace import Trace


class Placer:
    """Holds no state of any request."""

    def __init__(
        self,
        directory: ModelDirectory,
        scheduler: Scheduler,
        decisions: Decisions,
        clock: Clock,
        observer: Observer,
    ) -> None:
        self._directory = directory
        self._scheduler = scheduler
        self._decisions = decisions
        self._clock = clock
        self._observer = observer

    def place(self, call: Call, timeline: Timeline, retries: Retries, before: Attempt | None = None) -> Attempt:
        """Decide and book. No await in here: concurrent requests must see each other's reservations. ``before``: the
        attempt that failed, if any.

        Raises NoEndpoint, PluginFailed.
        """
        request, index, decisions, began = call.request, call.runtime.index, self._decisions, self._clock.monotonic()
        number, trace = len(timeline.records) + 1, None
        try:
            candidates = self._directory.eligible(request, call.pinned_url, retries.failed_on)
            trace = Trace(decisions.rosters)
            form, fell_back = not isinstance(call.body, JsonBody), bool(timeline.fallback)
            plan = decide(call, candidates, index, self._scheduler, trace, form=form, fell_back=fell_back)
        except GatewayError as error:
            timeline.records += (decisions.keep(request, error, trace, number, began),)
            raise
        done = None if before is None else before.prefill_result
        prefilled = None if done is None else done.prefill
        placement = book(call, plan, index, self._clock.monotonic(), prefilled=prefilled)
        try:
            record = decisions.keep(request, plan, trace, number, began)
            timeline.records += (record,)
            return Attempt(call, timeline, placement, record, retries, self._scheduler, self._observer, before)
        except BaseException:  # a defect must not keep a place for ever
            placement.cancel()
            raise
