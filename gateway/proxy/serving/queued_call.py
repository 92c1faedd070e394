"""A request in its model's queue: while it waits, here or at the worker that leads the host, and once it is placed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from gateway.api.body import JsonBody
from gateway.errors import NoEndpoint
from gateway.fleet.load.booking import Booking
from gateway.flow.entry import Entry, State, priced
from gateway.flow.placed import Placed
from gateway.flow.questions import Question, Room, Stay, question
from gateway.flow.queue import HeldQueue
from gateway.framework import Clock, Endpoint, Plan
from gateway.kvcache.index.keys import BlockKeys
from gateway.proxy.serving.attempt import Attempt
from gateway.proxy.serving.call import Call
from gateway.proxy.serving.host_queue import HostQueue
from gateway.proxy.serving.placer import Placer
from gateway.proxy.serving.timeline import NOT_TOLD, Timeline
from gateway.proxy.upstream.legs import Retries
from gateway.scheduling.trace import Trace

MOST_ASKED = 4
"""Times that a request asks since it could not be placed where it was granted room: an endpoint is drained or gone just
then. Then it is placed wherever it can be, as without a queue."""


class CallQueue(Protocol):
    """The queue of a model as its requests see it: ``ModelQueue``."""

    name: str
    held: HeldQueue
    host: HostQueue | None
    clock: Clock
    served: Callable[[str, int, float], None]

    def endpoints(self) -> Sequence[Endpoint]: ...

    def look_soon(self) -> None: ...

    def refuse(self, entry: Entry, error: Exception) -> None: ...


@dataclass(slots=True, eq=False)
class QueuedCall(Entry):
    """A request that came to the queue, until it is placed or has left.

    ``label``: its tenant, in metrics. ``placer``, ``timeline``, ``retries``: what its attempts are made with.
    ``trace``: what its last plan was made of, since ``planning`` (Clock.monotonic()). ``attempt``: its first one, once
    it is placed. ``turn``: done when it is placed or refused; None: it never waited. ``asked``: how often it asked the
    host's lead.
    """

    queue: CallQueue = None  # type: ignore[assignment]  # the last fields of Entry have defaults
    label: str = ""
    placer: Placer = None  # type: ignore[assignment]
    timeline: Timeline = None  # type: ignore[assignment]
    retries: Retries = None  # type: ignore[assignment]
    trace: Trace = None  # type: ignore[assignment]
    planning: float = 0.0
    attempt: Attempt | None = None
    turn: asyncio.Future[None] | None = None
    asked: int = 0

    @property
    def waited_for(self) -> str:
        return "" if self.where is None else f"{self.where.name}: {self.reason}"

    def wake(self, error: Exception | None = None) -> None:
        """It was placed, or refused with ``error``."""
        if self.turn is not None and not self.turn.done():
            if error is None:
                self.turn.set_result(None)
            else:
                self.turn.set_exception(error)

    def book(self, plan: Plan, entry: Entry | Placed, waited_for: str, number: int = 0) -> None:
        """Its first attempt. ``entry``: what its queue has of it. ``number``: see ``PlacedCall``."""
        timeline, call = self.timeline, _call(self)
        waited = self.queue.clock.monotonic() - self.began if self.turn is not None else 0.0
        attempt = self.placer.book(call, plan, timeline, self.retries, self.trace, self.planning)
        timeline.queued = PlacedCall(self.queue, entry, timeline, self.request.band, self.label, number)
        timeline.queue_wait += waited
        attempt.record.waited, attempt.record.waited_for = waited, waited_for
        self.attempt = attempt

    # While it waits at another worker: ``flow.asking.Asker``

    def question(self, number: int) -> Question:
        call, endpoints = _call(self), self.queue.endpoints()
        self.began, self.asked = self.arrived, self.asked + 1
        call.request.matches = call.runtime.index.match(call.keys, call.request.prompt_tokens, endpoints)
        stay = Stay(self.arrived, self.deadline, self.size, call.pinned_url, not isinstance(call.body, JsonBody))
        return question(number, call.request, call.keys, stay, endpoints)

    def granted(self, legs: Sequence[tuple[str, str]], waited_for: str, number: int) -> bool:
        call, anywhere = _call(self), not legs or self.asked >= MOST_ASKED
        names = () if anywhere else tuple([name for _, name in legs])
        self.trace, self.planning = Trace(self.placer.rosters), self.queue.clock.monotonic()
        try:
            plan = self.placer.decide(call, self.timeline, self.retries, self.trace, names)
        except NoEndpoint:
            if anywhere:
                raise
            return False
        placed = Placed(plan, *priced(call.request, plan))
        self.waited = self.queue.clock.monotonic() - self.began
        self.book(plan, placed, waited_for, number)
        placed.held = self.queue.held.live.hold(plan.decode, call.keys)
        self.waits_no_more(State.PLACED)
        self.wake()
        return True

    def refused(self, error: Exception) -> None:
        self.waited = self.queue.clock.monotonic() - self.began
        self.wake(error)

    def comes_home(self) -> None:
        try:
            self.queue.held.arrive(self)
        except Exception as error:
            self.refused(error)
        self.queue.look_soon()


def _call(entry: QueuedCall) -> Call:
    assert isinstance(entry.call, Call), "it is asked for before its placement only"
    return entry.call


class PlacedCall(msgspec.Struct, eq=False):
    """A request that was placed, however, until it has ended: the ``InQueue`` of its attempts. ``entry``: what the
    queue has of it. ``band``, ``label``: as its use is counted. ``number``: of the question by which the host's lead
    granted it room; 0: it was not asked."""

    queue: CallQueue
    entry: Entry | Placed
    timeline: Timeline
    band: int
    label: str
    number: int = 0

    def first_token(self, booking: Booking, at: float) -> None:
        """The first token of its answer came at ``at`` (Clock.monotonic())."""
        seconds, queue = at - booking.at, self.queue
        queue.held.first_token(booking.endpoint, booking.predicted, seconds)
        if queue.held.lines.places:
            queue.look_soon()
        elif queue.host is not None and queue.host.asking.anybody_waits(queue.name):
            queue.host.asking.room(Room(queue.name, booking.endpoint.name, (booking.predicted, seconds)))

    def freed(self, endpoint: Endpoint) -> None:
        """A prefill leg of it has left ``endpoint``."""
        queue = self.queue
        if queue.held.lines.places:
            queue.held.look_at(endpoint)
            queue.look_soon()
        elif queue.host is not None and queue.host.asking.anybody_waits(queue.name):
            queue.host.asking.room(Room(queue.name, endpoint.name))

    def placed_again(self, plan: Plan, keys: BlockKeys) -> None:
        """An attempt failed, and it was placed elsewhere without waiting. ``keys``: its prompt's."""
        self.queue.held.placed_again(self.entry, plan, keys)

    def ended(self) -> None:
        """However: it has given back all that was booked."""
        timeline, queue = self.timeline, self.queue
        usage, computed = timeline.usage, None
        if usage is not None and usage.prompt_tokens is not None and usage.cached_tokens is not None:
            computed = max(0, usage.prompt_tokens - usage.cached_tokens)
        elif timeline.sent_at is None:
            computed = 0
        output = timeline.outputs if usage is None or usage.output_tokens is None else usage.output_tokens
        if timeline.outcome in NOT_TOLD and timeline.request is not None:
            output = round(timeline.request.expected_output)
        seconds = queue.held.settled(self.entry, output=output, computed=computed)
        queue.served(self.label, self.band, seconds)
        if queue.held.lines.places:
            queue.look_soon()
        if self.number and queue.host is not None:
            queue.host.asking.ended(self.number, output, computed)
        elif queue.host is not None and queue.host.asking.anybody_waits(queue.name) and self.entry.plan is not None:
            queue.host.asking.room(Room(queue.name, self.entry.plan.decode.name, seconds=seconds))
