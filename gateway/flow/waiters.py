"""Those who wait in a model's queue: where each of them waits, and when something is next due for it. And the endpoints
that may have got room for them."""

from __future__ import annotations

from math import inf

from gateway.flow.entry import Entry, State
from gateway.flow.lazy_heap import LazyHeap
from gateway.flow.lines import Lines
from gateway.framework import Endpoint, Plan


class Waiters:
    """Times are of Clock.monotonic().

    ``lines``: where they wait. ``since``: when somebody began to wait, if since then there was always somebody; inf:
    nobody waits. ``touched``: slots of the endpoints that may have room now; whoever looks there takes them out.
    """

    def __init__(self, lines: Lines[Entry], patience: float) -> None:
        """``patience``: seconds after which each is due to be planned anew."""
        self.lines = lines
        self.since = inf
        self.touched: dict[int, None] = {}
        self._patience = patience
        self._alarms: LazyHeap[Entry] = LazyHeap()

    def begin(self, entry: Entry, where: Endpoint, reason: str, now: float) -> None:
        """It waits there from now on, as it is priced."""
        entry.state, entry.where, entry.reason = State.WAITING, where, reason
        self.lines.push(entry, where.slot)
        self.since = min(self.since, now)
        self.set_alarm(entry)

    def step_aside(self, entry: Entry) -> None:
        """It is about to ``begin`` to wait elsewhere."""
        self.touched[entry.slot] = None  # the next one there may have room
        self.lines.remove(entry)

    def move(self, entry: Entry, slot: int) -> None:
        """It is about to be placed on another endpoint than the one for which it waits."""
        self.touched[entry.slot] = None
        self.lines.move(entry, slot)

    def take(self, entry: Entry, now: float) -> None:
        """It was placed where it waited."""
        self.lines.take(entry)
        self._end(entry, now)

    def drop(self, entry: Entry, now: float) -> None:
        """It waits no more, and was not placed."""
        self.step_aside(entry)
        self._end(entry, now)

    def _end(self, entry: Entry, now: float) -> None:
        self._alarms.discard(entry)
        entry.waited = now - entry.began
        if not self.lines.places:
            self.since = inf

    def touch(self, plan: Plan | None) -> None:
        """What was placed leaves its endpoints, which may have room now."""
        if plan is not None and self.lines.places:
            for _, endpoint in plan.legs:
                self.touched[endpoint.slot] = None

    # When something is due

    def set_alarm(self, entry: Entry) -> None:
        """At the next time at which something is due for it."""
        self._alarms.set(entry, entry.next_at(self._patience))

    @property
    def next_alarm(self) -> float:
        """When something is next due for any; inf: nobody waits."""
        return self._alarms.top()[1] if self._alarms else inf

    def first_alarm(self) -> Entry:
        """For whom; somebody must wait."""
        return self._alarms.top()[0]
