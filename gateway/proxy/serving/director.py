"""The way of a request, as a list of verbs: receive, parse, admit, tokenize (``Reception``); match, schedule, reserve
(``Placer``); forward, relay, settle. Here is only their order, and what happens when one fails.

All of it runs in the client connection's own task, and waits only where it must: for a body that is still coming, a
permit, a tokenizer's thread, a new connection, the engine. From a body's last byte to the write to the engine it is one
step of that task otherwise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gateway.api.routes import Route
from gateway.core.observer import Observer
from gateway.errors import GatewayError, NoEndpoint
from gateway.framework import Clock
from gateway.kvcache.events.poller import Poller
from gateway.proxy.memory import Memory
from gateway.proxy.serving.attempt import Attempt
from gateway.proxy.serving.client import Client, ClientGone
from gateway.proxy.serving.exchange import Exchange
from gateway.proxy.serving.forward import Forwarder
from gateway.proxy.serving.handover import Handover
from gateway.proxy.serving.hooks import Hooks
from gateway.proxy.serving.placer import Placer
from gateway.proxy.serving.reception import Reception
from gateway.proxy.serving.relay import relay, relay_held
from gateway.proxy.serving.timeline import Event, Phase
from gateway.proxy.settings import RetrySettings
from gateway.proxy.upstream.commit import Committed
from gateway.proxy.upstream.legs import DeferredError, LegFailed, Retries


class Director:
    """Takes a request through the gateway. Holds no state of any request: an ``Exchange`` does.

    One for each configuration, so that a request ends under the one with which it began. ``idle``: seconds that a
    client may take nothing. ``poller``, ``memory``: all directors have these in common.
    """

    def __init__(  # 11 parameters: each is a room that the way of a request crosses, and belongs to no other
        self,
        reception: Reception,
        placer: Placer,
        forwarder: Forwarder,
        handover: Handover,
        hooks: Hooks,
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
        exchange = Exchange(request_id, route, self._clock, self._memory, self._observer)
        try:
            await self._reception.read(exchange, client)
            await self._answer(exchange, client)
        except GatewayError as error:
            exchange.timeline.failed(error)
            raise
        except (asyncio.CancelledError, ClientGone):
            exchange.cancelled()
            raise
        except BaseException:
            exchange.timeline.status, exchange.timeline.outcome = 500, "bug"
            raise
        finally:
            try:
                exchange.settle()
            finally:
                self._running -= 1
                if self._when_idle is not None:
                    self._look_idle()

    def refused(self, route: Route, request_id: str, error: GatewayError) -> None:
        """Count and log a request that was refused before it was read."""
        exchange = Exchange(request_id, route, self._clock, self._memory, self._observer)
        exchange.timeline.failed(error)
        exchange.settle()

    def _look_idle(self) -> None:
        if not self._running and self._when_idle is not None:
            then, self._when_idle = self._when_idle, None
            then()

    async def _answer(self, exchange: Exchange, client: Client) -> None:
        """Place and forward until an answer is the client's, or no attempt is left."""
        retries = Retries(self._retries, exchange.call.runtime.budget)
        failure: LegFailed | None = None
        held: DeferredError | None = None
        while True:
            await self._poller.catch_up()
            try:
                attempt = self._placer.place(exchange, retries)
            except NoEndpoint:
                if held is not None and exchange.attempt is not None:
                    return await relay_held(held, client, exchange.attempt, idle=self._idle)
                if failure is not None and failure.cause.sent:
                    raise failure.error() from failure
                raise
            try:
                if len(attempt.plan.legs) > 1:
                    committed = await self._handover.commit(attempt)
                else:
                    committed = await self._forwarder.forward(attempt, attempt.plan.decode, attempt.call.body)
                try:
                    return await self._relay(exchange, attempt, committed, client)
                finally:
                    committed.close()
            except LegFailed as failed:
                failure = failed
                attempt.timeline.happened(Event.ATTEMPT_FAILED)
                attempt.end(failure.result)
                if failure.held is not None:
                    exchange.share.keep(len(failure.held.body), instead_of=0 if held is None else len(held.body))
                    held = failure.held
                if retries.charge(failure):
                    continue
                if failure.held is not None:
                    return await relay_held(failure.held, client, attempt, idle=self._idle)
                raise failure.error() from failure

    async def _relay(self, exchange: Exchange, attempt: Attempt, committed: Committed, client: Client) -> None:
        for hook in self._after_commit.get(exchange.route.kind, ()):
            if (then := hook.after_commit(attempt, committed)) is not None:
                exchange.after_settle.append(then)
        if committed.events is not None:
            exchange.forget_prompt()
        try:
            await relay(committed, client, attempt, idle=self._idle)
        finally:  # whether its client has stayed to hear of it or not
            if attempt.broken is not None:
                self._forwarder.failed(attempt.broken)
            elif committed.events is not None and attempt.timeline.phase is Phase.DONE:
                self._forwarder.finished(committed.answer.endpoint)
