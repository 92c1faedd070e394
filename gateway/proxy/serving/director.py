"""The way of a request through the proxy, as a list of verbs: receive, parse, admit, tokenize (``Reception``); match,
schedule, reserve (``Placer``); forward, relay, settle. Here is only their order from the placement on, and what happens
when one fails; what comes before and at the end, ``Front`` does for every front door.

All of it runs in the client connection's own task, and waits only where it must: for a body that is still coming, a
permit, a tokenizer's thread, a new connection, the engine, and before a stage for the other requests of the same turn
(``Stages``). From a body's last byte to the write to the engine it is one step of that task otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gateway.core.observer import Observer
from gateway.errors import NoEndpoint
from gateway.flow.admission import Permit
from gateway.framework import Clock
from gateway.kvcache.events.poller import Poller
from gateway.proxy.memory import Memory, Share
from gateway.proxy.serving.attempt import Attempt
from gateway.proxy.serving.call import Call
from gateway.proxy.serving.client import Client
from gateway.proxy.serving.forward import Forwarder
from gateway.proxy.serving.front import Front
from gateway.proxy.serving.handover import Handover
from gateway.proxy.serving.hooks import AfterSettle, Hooks
from gateway.proxy.serving.placer import Placer
from gateway.proxy.serving.queueing import ModelQueue
from gateway.proxy.serving.reception import Reception
from gateway.proxy.serving.relay import relay, relay_held
from gateway.proxy.serving.timeline import Phase, Timeline
from gateway.proxy.settings import RetrySettings
from gateway.proxy.upstream.commit import Committed
from gateway.proxy.upstream.legs import DeferredError, LegFailed, Retries


class Director(Front[Client]):
    """Takes a request through the gateway to an engine, and the answer back. ``idle``: seconds that a client may take
    nothing."""

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
        super().__init__(reception, placer, queues, poller=poller, memory=memory, clock=clock, observer=observer)
        self._forwarder = forwarder
        self._handover = handover
        self._after_commit = hooks.after_commit
        self._retries = retries
        self._idle = idle

    async def _answer(
        self, call: Call, permit: Permit, client: Client, timeline: Timeline, share: Share
    ) -> Sequence[AfterSettle]:
        """Place and forward until an answer is the client's, or no attempt is left. Returns what is to be called when
        all is given back."""
        retries = Retries(self._retries, call.runtime.budget)
        held: DeferredError | None = None
        stages = client.stages
        try:
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
                if not (retries.seen or held or attempt.call.runtime.standby.passes(attempt.call.request)):
                    await self._stand_by(attempt.call, timeline, share)
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
