"""The way of a request, as a list of verbs: receive, parse, admit, tokenize (``Reception``); match, schedule, reserve
(``Placer``); forward, relay, settle. Here is only their order, and what happens when one fails.

All of it runs in the client connection's own task, and waits only where it must: for a body that is still coming, a
permit, a tokenizer's thread, a new connection, the engine, and before a stage for the other requests of the same turn
(``Stages``). From a body's last byte to the write to the engine it is one step of that task otherwise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from gateway.api.routes import Route
from gateway.core.observer import Observer
from gateway.errors import GatewayError, NoEndpoint
from gateway.flow.admission import Permit
from gateway.framework import Clock
from gateway.kvcache.events.poller import Poller
from gateway.proxy.memory import Memory, Share
from gateway.proxy.serving.attempt import Attempt
from gateway.proxy.serving.call import Call
from gateway.proxy.serving.client import Client, ClientGone
from gateway.proxy.serving.forward import Forwarder
from gateway.proxy.serving.handover import Handover
from gateway.proxy.serving.hooks import AfterSettle, Hooks
from gateway.proxy.serving.placer import Placer
from gateway.proxy.serving.queueing import ModelQueue
from gateway.proxy.serving.reception import Reception
from gateway.proxy.serving.relay import relay, relay_held
from gateway.proxy.serving.settle import settle
from gateway.proxy.serving.timeline import Event, Phase, Timeline
from gateway.proxy.settings import RetrySettings
from gateway.proxy.upstream.commit import Committed
from gateway.proxy.upstream.legs import DeferredError, LegFailed, Retries
from gateway.scheduling.trace import Trace


class Director:
    """Takes a request through the gateway. Holds no state of any request: its ``Call``, its
    ``Timeline`` and the ``Attempt`` under way do.

    One for each configuration, so that a request ends under the one with which it began. ``idle``: seconds that a
    client may take nothing. ``queues``: by model, of those that have one. ``poller``, ``memory``: all directors have
    these in common.
    """

    def __init__(  # 12 parameters: each is a room that the way of a request crosses, and belongs to no other
        self,
        reception: Reception,
        placer: Placer,
        forwarder: Forwarder,
        handover: Handover,
        hooks: Hooks,
        queues: Mapping[str, ModelQueue],
        *,
        retries: RetrySettings,
        idle: float,
        poller: Poller,
        memory: Memory,
        clock: Clock,
        observer: Observer,
    ) -> None:
        self._reception = reception
        self._placer = placer
        self._forwarder = forwarder
        self._handover = handover
        self._after_commit = hooks.after_commit
        self._queues = queues
        self._retries = retries
        self._idle = idle
        self._poller = poller
        self._memory = memory
        self._clock = clock
        self._observer = observer
        self._running = 0
        self._when_idle: Callable[[], None] | None = None

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

    async def handle(self, client: Client, route: Route, request_id: str) -> None:
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

    async def _answer(
        self, call: Call, permit: Permit, client: Client, timeline: Timeline, share: Share
    ) -> Sequence[AfterSettle]:
        """Place and forward until an answer is the client's, or no attempt is left. Returns what is to be called when
        all is given back."""
        retries = Retries(self._retries, call.runtime.budget)
        held: DeferredError | None = None
        stages = client.stages
        try:
            if stages.waiting:
                await stages.wait_for_peers()
            await self._poller.catch_up()
            attempt = await self._first_attempt(call, client, timeline, retries, share)
            del call  # only the attempt has it now, which drops the prompt when a stream begins
            while True:
                try:
                    with attempt:
                        if stages.waiting:
                            await stages.wait_for_peers()
                        if len(attempt.plan.legs) > 1:
                            committed = await self._handover.commit(attempt)
                        else:
                            committed = await self._forwarder.forward(attempt, attempt.plan.decode, attempt.call.body)
                        return await self._relay(attempt, committed, client, share)
                except LegFailed as failed:
                    failure = failed
                if failure.held is not None:
                    share.keep(len(failure.held.body), instead_of=0 if held is None else len(held.body))
                    held = failure.held
                if not retries.charge(failure):
                    if failure.held is None:
                        raise failure.error() from failure
                    await relay_held(failure.held, client, timeline, attempt.call.id, idle=self._idle)
                    return ()
                if not (failure.cause.sent or held or attempt.call.runtime.standby.passes(attempt.call.request)):
                    await self._stand_by(attempt.call, timeline)
                    retries.failed_on.clear()  # no engine has seen it, and those that took no connection may be back
                await self._poller.catch_up()
                try:
                    attempt = self._placer.place(attempt.call, timeline, retries, attempt)
                    if timeline.queued is not None:
                        timeline.queued.placed_again(attempt.plan, attempt.call.keys)
                except NoEndpoint:
                    if held is not None:
                        await relay_held(held, client, timeline, attempt.call.id, idle=self._idle)
                        return ()
                    if failure.cause.sent:
                        raise failure.error() from failure
                    raise
        finally:
            permit.release()

    async def _first_attempt(
        self, call: Call, client: Client, timeline: Timeline, retries: Retries, share: Share
    ) -> Attempt:
        """Place it, as soon as its model has an endpoint, and room where it has a queue."""
        queue = self._queues.get(call.runtime.model.name) if self._queues else None
        while True:
            if not call.runtime.standby.passes(call.request):
                await self._stand_by(call, timeline)
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

    async def _stand_by(self, call: Call, timeline: Timeline) -> None:
        """Wait until an endpoint of its model is usable. Raises NoEndpoint where none is in time."""
        timeline.happened(Event.HELD)
        grant, began = timeline.grant, self._clock.monotonic()
        try:
            if grant is not None:
                grant.queue()
            await call.runtime.standby.wait(call.request, call.timeout)
        except NoEndpoint as error:
            self._placer.refused(call, error, timeline, Trace(self._placer.rosters), began)
            raise
        finally:
            if grant is not None:
                grant.unqueue()
            timeline.queue_wait += self._clock.monotonic() - began
        timeline.happened(Event.RELEASED)

    async def _relay(
        self, attempt: Attempt, committed: Committed, client: Client, share: Share
    ) -> Sequence[AfterSettle]:
        after: tuple[AfterSettle, ...] = ()
        try:
            for hook in self._after_commit.get(attempt.call.route.kind, ()):
                if (then := hook.after_commit(attempt, committed)) is not None:
                    after += (then,)
            if committed.events is not None:
                attempt.forget_prompt()
                share.release()
            await relay(committed, client, attempt, idle=self._idle)
            return after
        finally:  # whether its client has stayed to hear of it or not
            committed.close()
            if attempt.broken is not None:
                self._forwarder.failed(attempt.broken)
            elif committed.events is not None and attempt.timeline.phase is Phase.DONE:
                self._forwarder.finished(committed.answer.endpoint)
