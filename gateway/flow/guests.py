"""The requests of other workers in the queue of this one, which leads the host.

A guest waits as any request does, and is planned by this process on its own ledgers and what the asking worker's index
knew. When there is room it is *granted*: the room is booked here until the worker has booked it itself, which all
workers see in the shared rows of load, and for ``UNTAKEN`` seconds at most. The worker says what becomes of it.

Whoever is asked serves those who ask, though it may not lead: when a lead dies, workers hear of it one after the other.
No socket and no loop in here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import NamedTuple, Protocol

from gateway.fleet.load.booking import Booking
from gateway.flow.entry import Entry
from gateway.flow.questions import (
    Ended,
    Forget,
    Grant,
    Leave,
    Message,
    Question,
    Refusal,
    Room,
    Taken,
    keys_of,
    request_of,
)
from gateway.flow.queue import HeldQueue
from gateway.framework import Clock, Endpoint, Plan, Request
from gateway.framework.fleet import Model
from gateway.framework.request import DECODE, PREFILL
from gateway.kvcache.index.keys import BlockKeys

UNTAKEN = 0.05
"""Seconds for which granted room is kept: a worker's loop may be held up by a long prompt for 20 ms. Whoever takes it
later is served all the same, and may be one too many."""


class Asked(NamedTuple):
    """The ``Placeable`` of a guest."""

    request: Request
    keys: BlockKeys


@dataclass(slots=True, eq=False)
class Guest(Entry):
    """``worker``: whose it is. ``host``: the queue in which it is. ``kept``: bookings for it until ``kept_until``."""

    worker: int = -1
    question: Question = None  # type: ignore[assignment]  # the last fields of Entry have defaults
    host: Host = None  # type: ignore[assignment]
    kept: tuple[Booking, ...] = ()
    kept_until: float = inf

    def release(self) -> None:
        """Room is kept for it no more."""
        for booking in self.kept:
            booking.settle()
        self.kept = ()


class Host(Protocol):
    """The queue of a model in this process. ``look_soon``: something has changed, which ``held.pump`` must see."""

    @property
    def held(self) -> HeldQueue: ...

    @property
    def model(self) -> Model: ...

    def endpoint(self, name: str) -> Endpoint | None: ...

    def look_soon(self) -> None: ...


class Guests:
    """``host``: the queue of a model by its name; None: it has none. ``tell``: tell a worker something."""

    def __init__(
        self, host: Callable[[str], Host | None], tell: Callable[[int, Message], object], clock: Clock
    ) -> None:
        self._host = host
        self._tell = tell
        self._now = clock.monotonic
        self._guests: dict[tuple[int, int], Guest] = {}
        self._kept: dict[Guest, None] = {}

    def __len__(self) -> int:
        return len(self._guests)

    # What workers say

    def heard(self, worker: int, message: Message) -> None:
        if isinstance(message, Question):
            self._ask(worker, message)
        elif isinstance(message, Room):
            self._room(message)
        elif isinstance(message, Forget):
            self.left(worker)
        elif isinstance(message, Taken):
            if (guest := self._guests.get((worker, message.number))) is not None:
                self._release(guest)
        elif isinstance(message, Ended | Leave):
            guest = self._guests.pop((worker, message.number), None)
            if guest is not None and isinstance(message, Ended):
                self._leave(guest, output=message.output, computed=message.computed)
            elif guest is not None:
                self._leave(guest, output=0.0, computed=0)

    def left(self, worker: int) -> None:
        """It has ended, or asks another lead. What it had placed counts as it was expected."""
        for key, guest in [(key, guest) for key, guest in self._guests.items() if key[0] == worker]:
            del self._guests[key]
            self._leave(guest, output=guest.request.expected_output, computed=None)

    def close(self) -> None:
        """This process ends: nobody is served here any more."""
        for worker in {worker for worker, _ in self._guests}:
            self.left(worker)

    def _ask(self, worker: int, question: Question) -> None:
        host = self._host(question.model)
        if host is None:
            self._tell(worker, Grant(question.number))
            return
        try:
            request = request_of(question, host.model)
        except ValueError as error:  # of another version: it must not wait for an answer for ever
            self._tell(worker, Refusal.of(question.number, error))
            return
        guest = Guest(
            *(request, 0.0, 0.0, question.came),
            deadline=question.deadline,
            size=question.size,
            call=Asked(request, keys_of(question)),
            worker=worker,
            question=question,
            host=host,
        )
        self._guests[worker, question.number] = guest
        try:
            host.held.arrive(guest)
        except Exception as error:
            self.refuse(guest, error)
        host.look_soon()

    def _room(self, message: Room) -> None:
        host = self._host(message.model)
        endpoint = None if host is None else host.endpoint(message.endpoint)
        if host is None or endpoint is None:
            return
        if message.first is not None:
            host.held.first_token(endpoint, *message.first)
        else:
            host.held.look_at(endpoint)
        if message.seconds:
            host.held.ended_elsewhere(message.seconds)
        host.look_soon()

    def _leave(self, guest: Guest, *, output: float, computed: int | None) -> None:
        self._release(guest)
        guest.host.held.leave(guest)
        guest.host.held.settled(guest, output=output, computed=computed)
        guest.host.look_soon()

    # What the queue says: see ``Driver``

    def place(self, guest: Guest, plan: Plan) -> None:
        """Keep the room, and say so."""
        now = self._now()
        guest.kept = reserve(guest.request, plan, now)
        guest.kept_until = now + UNTAKEN
        self._kept[guest] = None
        waited_for = "" if guest.where is None else f"{guest.where.name}: {guest.reason}"
        legs = [(kind, endpoint.name) for kind, endpoint in plan.legs]
        self._tell(guest.worker, Grant(guest.question.number, legs, waited_for))

    def refuse(self, guest: Guest, error: Exception) -> None:
        del self._guests[guest.worker, guest.question.number]
        self._tell(guest.worker, Refusal.of(guest.question.number, error))

    def expire(self) -> float:
        """Keep no room that was not taken in time. Returns when to call it again: Clock.monotonic(), or inf."""
        now = self._now()
        for guest in list(self._kept):  # in the order in which they were granted
            if guest.kept_until > now:
                return guest.kept_until
            self._release(guest)
        return inf

    def _release(self, guest: Guest) -> None:
        if guest in self._kept:
            del self._kept[guest]
            guest.release()
            if guest.plan is not None:
                for _, endpoint in guest.plan.legs:
                    guest.host.held.look_at(endpoint)
                guest.host.look_soon()


def reserve(request: Request, plan: Plan, now: float) -> tuple[Booking, ...]:
    """Book the work of ``plan`` in the ledgers, as ``placing.book`` does, and nothing in the caches."""
    kept = []
    for kind, endpoint in plan.legs:
        booking = Booking(request, endpoint, now, kv=kind in (PREFILL, DECODE))
        if kind == (DECODE if plan.prefill is None else PREFILL):
            booking.book_prompt(now, reported=True)
        kept.append(booking)
    return tuple(kept)
