"""Runs a model's queue (``gateway.flow.queue``) in the proxy's event loop: a request waits here for its first attempt.

The queue itself knows no loop, and no time but its clock's. Here are the future for which a request waits, and the
moments at which the queue is looked at: once for all that happened in one iteration of the loop, and when the queue
itself asks for it. While nobody waits there is no timer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from random import Random

import msgspec

from gateway.core.observer import Observer
from gateway.core.queue_view import EndpointRoom, QueueView
from gateway.errors import GatewayError, Saturated
from gateway.fleet.load.booking import Booking
from gateway.flow.entry import Entry
from gateway.flow.guarded_order import GuardedOrder
from gateway.flow.placed import Placed
from gateway.flow.queue import HeldQueue
from gateway.flow.settings import QueueSettings
from gateway.framework import Clock, Endpoint, Order, Plan
from gateway.kvcache.index.keys import BlockKeys
from gateway.proxy.serving.attempt import Attempt
from gateway.proxy.serving.call import Call
from gateway.proxy.serving.placer import Placer
from gateway.proxy.serving.timeline import Event, Timeline
from gateway.proxy.upstream.legs import Retries
from gateway.scheduling.trace import Trace

log = logging.getLogger("kvgate.queue")

NOBODY: Sequence[Endpoint] = ()

AGAIN = 1.0
"""Seconds after which a queue is looked at again that has failed: often enough for those who wait, and for the log."""


@dataclass(slots=True, eq=False)
class QueuedCall(Entry):
    """A request that came to the queue, until it has ended.

    ``label``: its tenant, in metrics. ``placer``, ``timeline``, ``retries``: what its attempts are made with.
    ``trace``: what its last plan was made of, since ``planning`` (Clock.monotonic()). ``attempt``: its first one, once
    it is placed. ``turn``: done when it is placed or refused; None: it never waited.
    """

    queue: ModelQueue = None  # type: ignore[assignment]  # the last fields of Entry have defaults
    label: str = ""
    placer: Placer = None  # type: ignore[assignment]
    timeline: Timeline = None  # type: ignore[assignment]
    retries: Retries = None  # type: ignore[assignment]
    trace: Trace = None  # type: ignore[assignment]
    planning: float = 0.0
    attempt: Attempt | None = None
    turn: asyncio.Future[None] | None = None

    @property
    def waited_for(self) -> str:
        return "" if self.where is None else f"{self.where.name}: {self.reason}"


class PlacedCall(msgspec.Struct, eq=False):
    """A request that was placed, however, until it has ended: the ``InQueue`` of its attempts. ``entry``: what the
    queue has of it. ``band``, ``label``: as its use is counted."""

    queue: ModelQueue
    entry: QueuedCall | Placed
    timeline: Timeline
    band: int
    label: str

    def first_token(self, booking: Booking, at: float) -> None:
        """The first token of its answer came at ``at`` (Clock.monotonic())."""
        self.queue.held.first_token(booking.endpoint, booking.predicted, at - booking.at)
        self.queue.look_soon()

    def freed(self, endpoint: Endpoint) -> None:
        """A leg of it has left ``endpoint``."""
        if self.queue.held.lines.places:
            self.queue.held.look_at(endpoint)
            self.queue.look_soon()

    def placed_again(self, plan: Plan, keys: BlockKeys) -> None:
        """An attempt failed, and it was placed elsewhere without waiting. ``keys``: its prompt's."""
        self.queue.held.placed_again(self.entry, plan, keys)

    def ended(self) -> None:
        """However: it has given back all that was booked."""
        timeline = self.timeline
        usage, computed = timeline.usage, None
        if usage is not None and usage.prompt_tokens is not None and usage.cached_tokens is not None:
            computed = max(0, usage.prompt_tokens - usage.cached_tokens)
        elif timeline.sent_at is None:
            computed = 0
        output = timeline.outputs if usage is None or usage.output_tokens is None else usage.output_tokens
        queue = self.queue
        queue.served(self.label, self.band, queue.held.settled(self.entry, output=output, computed=computed))
        if queue.held.lines.places:
            queue.look_soon()


class ModelQueue:
    """The queue of one model, in one event loop, as its ``Driver``. It outlives a configuration that keeps it.

    ``members``: returns the model's endpoints, up or not. ``expect``: has the engines' KV events looked at often for a
    while. ``catch_up``: brings what other processes have booked. All are set once there is a fleet. ``served``: counts
    engine seconds of a tenant and band.
    """

    def __init__(
        self, settings: QueueSettings, order: Order, model: str, clock: Clock, chance: Random, observer: Observer
    ) -> None:
        self.settings = settings
        self.order = order
        self.members: Callable[[], Sequence[Endpoint]] = lambda: NOBODY
        self.expect: Callable[[], None] = lambda: None
        self.catch_up: Callable[[], None] = lambda: None
        self.held = HeldQueue(model, settings, GuardedOrder(order, settings.order, observer), self, clock, chance)
        self.served = partial(observer.served, model)
        self._model = model
        self._clock = clock
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
        trace, began, held, plan = Trace(placer.rosters), self._clock.monotonic(), self.held, None
        if not held.asks_all:
            try:
                plan = placer.decide(call, timeline, retries, trace)
            except GatewayError as error:
                placer.refused(call, error, timeline, trace, began)
                raise
            placed = held.at_once(call, plan, began)
            if placed is not None:
                attempt = placer.book(call, plan, timeline, retries, trace, began)
                placed.held = held.live.hold(plan.decode, call.keys)
                timeline.queued = PlacedCall(self, placed, timeline, call.request.band, label)
                return attempt
        entry = QueuedCall.of(call, self.settings, began, size=size, timeout=call.timeout)
        entry.queue, entry.label, entry.placer, entry.timeline, entry.retries = self, label, placer, timeline, retries
        entry.trace, entry.planning = trace, began
        try:
            if not held.arrive(entry, plan):
                await self._wait(entry)
        except GatewayError as error:
            if isinstance(error, Saturated):
                self._observer.shed(self._model, call.request.band, error.reason)
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
        self.look_soon()
        try:
            if timeline.grant is not None:
                timeline.grant.queue()
            await entry.turn
        except BaseException as error:
            outcome = "refused" if isinstance(error, GatewayError) else "left"
            self.held.leave(entry)
            self.look_soon()
            if entry.attempt is None:
                timeline.queue_wait += entry.waited
            else:  # its client left just when it was placed
                with entry.attempt:
                    raise
            raise
        finally:
            entry.turn = None  # an exception in it would keep its traceback, and the body with it
            if timeline.grant is not None:
                timeline.grant.unqueue()
            self._observer.held(self._model, band, outcome, entry.waited)

    def look_soon(self) -> None:
        """Something has changed: look at the queue at the end of this iteration of the loop, if anybody waits."""
        if self._soon is None and self.held.waiting:
            self._soon = asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        self._soon = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        at = self._clock.monotonic() + AGAIN
        try:
            self.catch_up()
            at = self.held.pump()
            if at < inf:
                self.expect()  # who is placed later must be matched with what is held then
        except Exception:  # a defect must not keep all others waiting for ever
            log.exception("the queue of model %s failed at a look, and is looked at again", self._model)
        if at < inf:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, at - self._clock.monotonic()), self._look)

    def view(self) -> QueueView:
        now, held = self._clock.monotonic(), self.held
        waiting: dict[int, int] = {}
        for (band, _), total in held.lines.by_band().items():
            waiting[band] = waiting.get(band, 0) + total.requests
        rooms = []
        for endpoint in self.members():
            if endpoint.engine.up:
                full = held.room.fullness(endpoint, now)
                factor = held.windows.factor(endpoint)
                rooms.append(EndpointRoom(endpoint.name, full.saturation, full.binding, factor))
        seconds = sum(total.seconds for total in held.lines.by_band().values())
        oldest = max((now - entry.began for entry in held.lines), default=0.0)
        return QueueView(self._model, waiting, seconds, oldest, rooms)

    # What the queue asks of its driver

    def endpoints(self) -> Sequence[Endpoint]:
        return self.members()

    def decide(self, entry: Entry) -> Plan:
        assert isinstance(entry, QueuedCall)
        entry.trace, entry.planning = Trace(entry.placer.rosters), self._clock.monotonic()
        return entry.placer.decide(_call(entry), entry.timeline, entry.retries, entry.trace)

    def place(self, entry: Entry, plan: Plan) -> None:
        assert isinstance(entry, QueuedCall)
        timeline = entry.timeline
        waited = self._clock.monotonic() - entry.began if entry.turn is not None else 0.0
        attempt = entry.placer.book(_call(entry), plan, timeline, entry.retries, entry.trace, entry.planning)
        timeline.queued = PlacedCall(self, entry, timeline, entry.request.band, entry.label)
        timeline.queue_wait += waited
        attempt.record.waited, attempt.record.waited_for = waited, entry.waited_for
        entry.attempt = attempt
        if entry.turn is not None and not entry.turn.done():
            entry.turn.set_result(None)

    def refuse(self, entry: Entry, error: Exception) -> None:
        assert isinstance(entry, QueuedCall)
        if entry.turn is not None and not entry.turn.done():
            entry.turn.set_exception(error)


def _call(entry: QueuedCall) -> Call:
    assert isinstance(entry.call, Call), "it is asked for before its placement only"
    return entry.call
