"""One queue for all workers of a host: those that find no room ask the lead, whose queues hold the requests of all.

``flow.asking`` and ``flow.guests`` say how. Here are the messages' way, and the moments at which another leads. Who has
just started does not lead yet, whatever its number: until it knows the engines it would refuse all who wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from math import inf
from typing import Protocol
from weakref import WeakSet

import msgspec

from gateway.flow.asking import Asking
from gateway.flow.entry import Entry
from gateway.flow.guests import UNTAKEN, Guest, Guests, Host
from gateway.flow.questions import Grant, Message, Opens, Refusal, Waits
from gateway.framework import Clock, Plan
from gateway.sharing.siblings import Change, Siblings

log = logging.getLogger("kvgate.queue")

TOPIC = "queue"

_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Message)

NONE: Mapping[str, Host] = {}


class Member(Protocol):
    """The queue of a model in this process, maybe one that a reload has replaced."""

    def moves_out(self) -> None:
        """Another worker leads: those of this worker that wait here are to ask it."""


class HostQueue:
    """``queues``: those in force, by model. ``asking``: this worker's requests at the lead. ``guests``: others',
    here."""

    def __init__(self, siblings: Siblings, clock: Clock) -> None:
        self.queues = NONE
        self.asking = Asking(self._tell)
        self.guests = Guests(lambda model: self.queues.get(model), self._tell, clock)
        self._siblings = siblings
        self._clock = clock
        self._members: WeakSet[Member] = WeakSet()
        self._waits: set[str] = set()
        self._open: set[int] = set()
        """Numbers of workers that may lead, our own among them."""
        self._timer: asyncio.TimerHandle | None = None
        siblings.hear(TOPIC, self._heard)
        siblings.watch(self._changed)

    def open(self) -> None:
        """This process knows the engines, and may lead."""
        self._open.add(self._siblings.number)
        self._siblings.tell(TOPIC, _ENCODER.encode(Opens()))
        self._look()

    def serve(self, queues: Mapping[str, Host]) -> None:
        """They are in force from now on."""
        for model in [model for model in self._waits if queues.get(model) is not self.queues.get(model)]:
            self.waits(model, self.queues[model], False)  # who waits in the one that is replaced is behind nobody
        self.queues = queues

    @property
    def leads(self) -> bool:
        """Whether this worker's requests wait here."""
        return self.asking.lead is None

    def joins(self, member: Member) -> None:
        self._members.add(member)

    def close(self) -> None:
        """Once the siblings are closed: they ask another."""
        self.guests.close()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # What this worker's queues say

    def ask(self, entry: Entry) -> None:
        """A ``QueuedCall``, which waits at the lead from now on."""
        self.asking.ask(entry)  # type: ignore[arg-type]

    def place(self, guest: Guest, plan: Plan) -> None:
        self.guests.place(guest, plan)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(UNTAKEN, self._expire)

    def waits(self, model: str, queue: Host, anybody: bool) -> None:
        """Whether anybody waits in ``queue``; the others ask if so."""
        if self.queues.get(model) is queue and anybody != (model in self._waits):
            (self._waits.add if anybody else self._waits.discard)(model)
            self._siblings.tell(TOPIC, _ENCODER.encode(Waits(model, anybody)))

    # What the others say

    def _heard(self, number: int, data: bytes) -> None:
        """Raises msgspec.DecodeError and ValueError for what is no message, which ``Siblings`` counts."""
        message = _DECODER.decode(data)
        if isinstance(message, Opens):
            self._open.add(number)
            self._look()
        elif isinstance(message, Grant | Refusal | Waits):
            self.asking.heard(number, message)
        else:
            self.guests.heard(number, message)

    def _changed(self, change: Change) -> None:
        siblings, left = self._siblings, change.left
        for number in left:
            self.guests.left(number)
        self._open -= left
        for number in change.joined:
            for model in self._waits:
                siblings.tell_one(number, TOPIC, _ENCODER.encode(Waits(model, True)))
            if siblings.number in self._open:
                siblings.tell_one(number, TOPIC, _ENCODER.encode(Opens()))
        self._look(left)

    def _look(self, left: frozenset[int] = frozenset()) -> None:
        """Ask the one that leads now. One that was cut off leads again when it has said anew that it may."""
        own = self._siblings.number
        first = min(self._open, default=own)
        lead = None if first == own else first
        if lead == self.asking.lead:
            self.asking.left(left)
            return
        self.asking.changed(lead, left)
        if lead is not None:
            for member in list(self._members):
                member.moves_out()

    def _tell(self, number: int, message: Message) -> bool:
        return self._siblings.tell_one(number, TOPIC, _ENCODER.encode(message))

    def _expire(self) -> None:
        self._timer, at = None, self.guests.expire()
        if at < inf:
            delay = max(0.0, at - self._clock.monotonic())
            self._timer = asyncio.get_running_loop().call_later(delay, self._expire)
