"""What every front door does with a request, whoever carries it to its engine: receive, parse, admit, tokenize
(``Reception``), place it, or let its model's queue do so (``Placer``), and settle it.

The proxy's is ``Director``, which forwards the request itself. ``gateway.epp.picker`` tells a gateway where to send it.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Generic, TypeVar

from gateway.api.routes import Route
from gateway.core.observer import Observer
from gateway.errors import Exhausted, GatewayError, NoEndpoint
from gateway.flow.admission import Permit
from gateway.framework import Clock
from gateway.kvcache.events.poller import Poller
from gateway.proxy.memory import Memory, Share
from gateway.proxy.serving.attempt import Attempt
from gateway.proxy.serving.call import Call
from gateway.proxy.serving.client import ClientGone, Sender
from gateway.proxy.serving.hooks import AfterSettle
from gateway.proxy.serving.placer import Placer
from gateway.proxy.serving.queueing import ModelQueue
from gateway.proxy.serving.reception import Reception
from gateway.proxy.serving.settle import settle
from gateway.proxy.serving.timeline import Event, Phase, Timeline
from gateway.proxy.upstream.legs import Retries
from gateway.scheduling.trace import Trace

C = TypeVar("C", bound=Sender)


class Front(ABC, Generic[C]):
    """Takes a request through the gateway. Holds no state of any request: its ``Call``, its ``Timeline`` and the
    ``Attempt`` under way do.

    One for each configuration, so that a request ends under the one with which it began. ``queues``: by model, of those
    that have one. ``poller``, ``memory``: all fronts have these in common.
    """

    def __init__(
        self,
        reception: Reception,
        placer: Placer,
        queues: Mapping[str, ModelQueue],
        *,
        poller: Poller,
        memory: Memory,
        clock: Clock,
        observer: Observer,
    ) -> None:
        self._reception = reception
        self._placer = placer
        self._queues = queues
        self._poller = poller
        self._memory = memory
        self._clock = clock
        self._observer = observer
        self._running = 0
        self._when_idle: Callable[[], None] | None = None

    @abstractmethod
    async def _answer(
        self, call: Call, permit: Permit, client: C, timeline: Timeline, share: Share
    ) -> Sequence[AfterSettle]:
        """Place the request, have it served, and release ``permit``. Returns what is to be called when all is given
        back. Keeps no name for ``call`` while its answer streams: it holds the prompt."""

    def retire(self, then: Callable[[], None]) -> None:
        """No request begins here any more: call ``then`` once the last one has ended."""
        if self._running:
            self._when_idle = then
        else:
            then()

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Whatever is done by this configuration meanwhile counts as a request."""
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1
            self._look_idle()

    async def handle(self, client: C, route: Route, request_id: str) -> None:
        """Answer one request. Raises GatewayError while nothing has gone to the client; CancelledError if it left."""
        self._running += 1
        timeline, share = Timeline(self._clock, self._clock.monotonic()), Share(self._memory)
        after: Sequence[AfterSettle] = ()
        try:
            # No name for what is read: it would keep the prompt while its answer streams.
            after = await self._answer(
                *await self._reception.read(client, route, request_id, timeline, share), client, timeline, share
            )
        except BaseException as error:
            timeline.ended_by(error)
            if isinstance(error, asyncio.CancelledError | ClientGone):
                model = "" if timeline.request is None else timeline.request.model.name
                self._observer.disconnected(model, str(timeline.phase))
            if (grant := timeline.grant) is not None:
                timeline.charge()
                if isinstance(error, GatewayError) and not error.headers:
                    error.headers = grant.headers()
            raise
        finally:
            try:
                share.release()
                if timeline.queued is not None:
                    timeline.queued.ended()
                if timeline.grant is not None:
                    timeline.charge()
                settle(request_id, route, timeline, self._observer)
                if timeline.outcome == "ok":
                    for then in after:
                        then()
            finally:
                self._running -= 1
                if self._when_idle is not None:
                    self._look_idle()

    def refused(self, route: Route, request_id: str, error: GatewayError) -> None:
        """Count and log a request that was refused before it was read."""
        timeline = Timeline(self._clock, self._clock.monotonic())
        timeline.ended_by(error)
        settle(request_id, route, timeline, self._observer)

    def _look_idle(self) -> None:
        if not self._running and self._when_idle is not None:
            then, self._when_idle = self._when_idle, None
            then()

    async def _first_attempt(
        self, call: Call, client: C, timeline: Timeline, retries: Retries, share: Share
    ) -> Attempt:
        """Place it, as soon as its model has an endpoint, and room where it has a queue.

        Raises NoEndpoint, Exhausted, PluginFailed, Saturated."""
        if client.stages.waiting:
            await client.stages.wait_for_peers()
        await self._poller.catch_up()
        queue = self._queues.get(call.runtime.model.name) if self._queues else None
        while True:
            if not call.runtime.standby.passes(call.request):
                await self._stand_by(call, timeline, share)
            if queue is None:
                return self._placer.place(call, timeline, retries)
            try:
                return await queue.first_attempt(
                    call, timeline, retries, self._placer, size=share.size, label=client.caller.label
                )
            except NoEndpoint:
                # The last endpoint went while it waited there: it stands by for the next one.
                if timeline.phase is not Phase.HELD or call.runtime.standby.passes(call.request):
                    raise
                timeline.happened(Event.RELEASED)

    async def _stand_by(self, call: Call, timeline: Timeline, share: Share) -> None:
        """Wait until an endpoint of its model is usable. Raises NoEndpoint where none is in time, Exhausted where too
        many bytes wait so."""
        timeline.happened(Event.HELD)
        grant, began = timeline.grant, self._clock.monotonic()
        try:
            if grant is not None:
                grant.queue()
            with share.standing_by():
                await call.runtime.standby.wait(call.request, call.timeout)
        except (NoEndpoint, Exhausted) as error:
            self._placer.refused(call, error, timeline, Trace(self._placer.rosters), began)
            raise
        finally:
            if grant is not None:
                grant.unqueue()
            timeline.queue_wait += self._clock.monotonic() - began
        timeline.happened(Event.RELEASED)
