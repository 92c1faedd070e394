"""Runs a model's queue (``gateway.flow.queue``) in the proxy's event loop: a request waits here for its first attempt.

The queue itself knows no loop, and no time but its clock's. Here are the future for which a request waits, and the
moments at which the queue is looked at: once for all that happened in one iteration of the loop, and when the queue
itself asks for it. While nobody waits there is no timer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from random import Random

from gateway.core.observer import Observer
from gateway.core.queue_view import EndpointRoom, QueueView
from gateway.errors import GatewayError, Saturated
from gateway.flow.entry import Entry, State
from gateway.flow.guarded_order import GuardedOrder
from gateway.flow.guests import Guest
from gateway.flow.placed import at_once
from gateway.flow.questions import Question
from gateway.flow.queue import HeldQueue
from gateway.flow.settings import QueueSettings
from gateway.flow.shed import EXPIRED
from gateway.framework import Clock, Endpoint, Order, Plan, Request
from gateway.framework.fleet import Model
from gateway.proxy.serving.attempt import Attempt
from gateway.proxy.serving.call import Call
from gateway.proxy.serving.host_queue import HostQueue
from gateway.proxy.serving.placer import Placer
from gateway.proxy.serving.queued_call import PlacedCall, QueuedCall
from gateway.proxy.serving.timeline import Event, Timeline
from gateway.proxy.upstream.legs import Retries
from gateway.scheduling.trace import Trace

log = logging.getLogger("kvgate.queue")

NOBODY: Sequence[Endpoint] = ()

UNANSWERED = 2.0
"""Seconds after a deadline in which the worker that leads should have refused a request: one that hangs is ended by its
parent by then."""

AGAIN = 1.0
"""Seconds after which a queue is looked at again that has failed: often enough for those who wait, and for the log."""


class ModelQueue:
    """The queue of one model, in one event loop, as its ``Driver``. It outlives a configuration that keeps it.

    ``members``: returns the model's endpoints, up or not. ``expect``: has the engines' KV events looked at often for a
    while. ``catch_up``: brings what other processes have booked. ``plan_for``: plans what another worker asks of.
    ``host``: what makes one queue of those of all workers; None: there is no other worker. All of these and ``model``
    are set once there is a fleet. ``served``: counts engine seconds of a tenant and band.
    """

    def __init__(
        self, settings: QueueSettings, order: Order, model: str, clock: Clock, chance: Random, observer: Observer
    ) -> None:
        self.settings = settings
        self.order = order
        self.members: Callable[[], Sequence[Endpoint]] = lambda: NOBODY
        self.expect: Callable[[], None] = lambda: None
        self.catch_up: Callable[[], None] = lambda: None
        self.plan_for: Callable[[Question, Request], Plan]
        self.host: HostQueue | None = None
        self.model = Model(model)
        self.held = HeldQueue(model, settings, GuardedOrder(order, settings.order, observer), self, clock, chance)
        self.served: Callable[[str, int, float], None] = partial(observer.served, model)
        self.name = model
        self.clock = clock
        self._observer = observer
        self._soon: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def first_attempt(
        self, call: Call, timeline: Timeline, retries: Retries, placer: Placer, *, size: int, label: str
    ) -> Attempt:
        """The first attempt of ``call``, as soon as its endpoint has room for it. ``size``: bytes that are held for it.
        ``label``: its tenant, in metrics.

        Raises Saturated if it is refused; otherwise as ``Placer.place``. If it is cancelled, in whatever phase, nothing
        of it is left.
        """
        trace, began, held, plan, host = Trace(placer.rosters), self.clock.monotonic(), self.held, None, self.host
        if not (held.lines.places or held.counts_all or (host is not None and host.asking.anybody_waits(self.name))):
            try:
                plan = placer.decide(call, timeline, retries, trace)
            except GatewayError as error:
                placer.refused(call, error, timeline, trace, began)
                raise
            placed = at_once(call, plan, held.room, held.live, began)
            if placed is not None:
                try:
                    attempt = placer.book(call, plan, timeline, retries, trace, began)
                except BaseException:
                    held.settled(placed, computed=0)
                    raise
                timeline.queued = PlacedCall(self, placed, timeline, call.request.band, label)
                return attempt
        entry = QueuedCall.of(call, self.settings, began, size=size, timeout=call.timeout)
        entry.queue, entry.label, entry.placer, entry.timeline, entry.retries = self, label, placer, timeline, retries
        entry.trace, entry.planning = trace, began
        try:
            if (host is not None and not host.leads) or not held.arrive(entry, plan):
                await self._wait(entry)
        except GatewayError as error:
            if isinstance(error, Saturated):
                self._observer.shed(self.name, call.request.band, error.reason)
            placer.refused(call, error, timeline, entry.trace, entry.planning)
            timeline.records[-1].waited, timeline.records[-1].waited_for = entry.waited, entry.waited_for
            raise
        assert entry.attempt is not None
        attempt, entry.attempt = entry.attempt, None
        return attempt

    async def _wait(self, entry: QueuedCall) -> None:
        timeline, band, outcome = entry.timeline, entry.request.band, "placed"
        timeline.happened(Event.HELD)
        entry.turn = asyncio.get_running_loop().create_future()
        timer = None
        if entry.state is State.NEW:
            timer = self._ask(entry)
        self.look_soon()
        try:
            if timeline.grant is not None:
                timeline.grant.queue()
            await entry.turn
        except BaseException as error:
            outcome = "refused" if isinstance(error, GatewayError) else "left"
            if self.host is not None and self.host.asking.leave(entry):
                entry.waited = self.clock.monotonic() - entry.began
            self.held.leave(entry)
            self.look_soon()
            if entry.attempt is None:
                timeline.queue_wait += entry.waited
            else:  # its client left just when it was placed
                with entry.attempt:
                    raise
            raise
        finally:
            if timer is not None:
                timer.cancel()
            entry.turn = None  # an exception in it would keep its traceback, and the body with it
            if timeline.grant is not None:
                timeline.grant.unqueue()
            self._observer.held(self.name, band, outcome, entry.waited)

    def _ask(self, entry: QueuedCall) -> asyncio.TimerHandle:
        """It waits at the worker that leads, which is to answer by its deadline."""
        assert self.host is not None

        def unanswered() -> None:
            if self.host is not None and self.host.asking.leave(entry):
                message = f"Model {self.name!r} is full: the queue gave no answer in time. Try again later."
                entry.refused(Saturated(message, reason=EXPIRED, retry_after=self.settings.max_wait))

        self.host.ask(entry)
        until = entry.deadline + UNANSWERED - self.clock.monotonic()
        return asyncio.get_running_loop().call_later(max(0.0, until), unanswered)

    def look_soon(self) -> None:
        """Something has changed: look at the queue at the end of this iteration of the loop, if anybody waits."""
        if self._soon is None and self.held.waiting:
            self._soon = asyncio.get_running_loop().call_soon(self._look)
            if self.host is not None:
                self.host.waits(self.name, self, True)

    def _look(self) -> None:
        self._soon = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        at = self.clock.monotonic() + AGAIN
        try:
            self.catch_up()
            at = self.held.pump()
            if at < inf:
                self.expect()  # who is placed later must be matched with what is held then
        except Exception:  # a defect must not keep all others waiting for ever
            log.exception("the queue of model %s failed at a look, and is looked at again", self.name)
        if self.host is not None:
            self.host.waits(self.name, self, bool(self.held.waiting))
        if at < inf:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, at - self.clock.monotonic()), self._look)

    def view(self) -> QueueView:
        now, held = self.clock.monotonic(), self.held
        waiting: dict[int, int] = {}
        for (band, _), total in held.lines.by_band().items():
            waiting[band] = waiting.get(band, 0) + total.requests
        rooms = []
        for endpoint in self.members():
            if endpoint.engine.up:
                full = held.room.fullness(endpoint, now)
                factor = held.windows.factor(endpoint)
                rooms.append(EndpointRoom(endpoint.name, full.saturation, full.binding, factor))
        oldest = max((now - entry.began for entry in held.lines), default=0.0)
        return QueueView(self.name, waiting, self.waiting_seconds, oldest, rooms)

    @property
    def waiting_seconds(self) -> float:
        """Engine time that what waits would take, as predicted."""
        return sum(total.seconds for total in self.held.lines.by_band().values())

    # Of one of a host's

    def endpoint(self, name: str) -> Endpoint | None:
        for endpoint in self.members():
            if endpoint.name == name:
                return endpoint
        return None

    def moves_out(self) -> None:
        """Another worker leads: those of this worker that wait here are to ask it."""
        assert self.host is not None
        for entry in list(self.held.lines):
            if isinstance(entry, QueuedCall):
                self.held.withdraw(entry)
                self.host.ask(entry)

    # What the queue asks of its driver

    def endpoints(self) -> Sequence[Endpoint]:
        return self.members()

    def decide(self, entry: Entry) -> Plan:
        if isinstance(entry, Guest):
            return self.plan_for(entry.question, entry.request)
        assert isinstance(entry, QueuedCall)
        assert isinstance(entry.call, Call)
        entry.trace, entry.planning = Trace(entry.placer.rosters), self.clock.monotonic()
        return entry.placer.decide(entry.call, entry.timeline, entry.retries, entry.trace)

    def place(self, entry: Entry, plan: Plan) -> None:
        if isinstance(entry, Guest):
            assert self.host is not None
            self.host.place(entry, plan)
            return
        assert isinstance(entry, QueuedCall)
        entry.book(plan, entry, entry.waited_for)
        entry.wake()

    def refuse(self, entry: Entry, error: Exception) -> None:
        if isinstance(entry, Guest):
            assert self.host is not None
            self.host.guests.refuse(entry, error)
            return
        assert isinstance(entry, QueuedCall)
        entry.wake(error)
