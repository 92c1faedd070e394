"""Match, schedule, reserve: from a call to an attempt that is booked on its endpoints."""

from __future__ import annotations

from gateway.api.body import JsonBody
from gateway.core.observer import Observer
from gateway.errors import GatewayError
from gateway.framework import Clock
from gateway.placement.placing import book, decide
from gateway.proxy.serving.attempt import Attempt
from gateway.proxy.serving.decisions import Decisions
from gateway.proxy.serving.exchange import Exchange
from gateway.proxy.serving.model_directory import ModelDirectory
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

    def place(self, exchange: Exchange, retries: Retries) -> Attempt:
        """Decide and book. No await in here: concurrent requests must see each other's reservations.

        Raises NoEndpoint, PluginFailed.
        """
        call, timeline, before = exchange.call, exchange.timeline, exchange.attempt
        request, index, began, trace = call.request, call.runtime.index, self._clock.monotonic(), Trace()
        form, fell_back = not isinstance(call.body, JsonBody), bool(timeline.fallback)
        try:
            candidates = self._directory.eligible(request, call.pinned_url, retries.failed_on)
            plan = decide(request, call.keys, candidates, index, self._scheduler, trace, form=form, fell_back=fell_back)
        except GatewayError as error:
            exchange.record = self._decisions.keep(request, timeline.attempts + 1, trace, error.message, began)
            raise
        done = None if before is None else before.prefill_result
        prefilled = done is not None and done.prefill is plan.prefill
        placement = book(request, call.keys, plan, index, self._clock.monotonic(), prefilled=prefilled)
        try:
            record = self._decisions.keep(request, timeline.attempts + 1, trace, plan, began)
            attempt = Attempt(call, timeline, placement, record, retries, self._scheduler, self._observer, before)
        except BaseException:  # a defect must not keep a place for ever
            placement.cancel()
            raise
        exchange.record, exchange.attempt = record, attempt
        attempt.begin()
        return attempt
