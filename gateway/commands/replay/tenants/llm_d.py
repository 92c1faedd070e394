"""The gate of llm-d's endpoint picker (flow control, July 2026), for comparison; placement behind it is ours.

One saturation for the whole pool, from scrapes: the mean over the engines of max(waiting / 5, KV usage / 0.8). While it
is below 1, one request is dispatched at each arrival and each millisecond. So what is dispatched between two scrapes is
not seen, and waits in the engines. A request waits for no engine of its own.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from statistics import fmean
from typing import TypeAlias

from gateway.commands.replay.legs import Legs
from gateway.commands.replay.seat import Flight, Seat
from gateway.commands.replay.world import Next, World

SCRAPE, DISPATCH = 0.05, 0.001
"""Seconds between two scrapes of all engines, and between two dispatches: llm-d's defaults."""

WAITING, KV = 5.0, 0.8
"""Waiting requests and share of KV memory at which an engine counts as saturated: llm-d's defaults."""

TTL, MOST = 60.0, 5000
"""Seconds that a request waits at most, and requests that wait at most: llm-d's defaults."""

Waiter: TypeAlias = tuple[float, Flight]
"""A flight, with when it came."""


def saturation(seats: Sequence[Seat]) -> float:
    """Of the pool, from the engines' gauges as they are now; 1: saturated."""
    return fmean(max(seat.engine.queued / WAITING, seat.engine.kv_usage / KV) for seat in seats)


class LlmdGate:
    """``round_robin``: between tenants in turn; else who came first."""

    def __init__(self, world: World, legs: Legs, *, round_robin: bool) -> None:
        self._world = world
        self._legs = legs
        self._round_robin = round_robin
        # By tenant, the next one first; in one queue for all where the order is who came first.
        self._flows: OrderedDict[str, deque[Waiter]] = OrderedDict()
        self._waiting = 0
        self._saturation = 0.0
        self._ticking = False
        world.agenda.push(0.0, Next.GATE, self._scrape)

    def arrive(self, flight: Flight) -> None:
        if self._waiting >= MOST:
            self._legs.refuse(flight, "queue-full")
            return
        flow = flight.call.tenant.name if self._round_robin else ""
        self._flows.setdefault(flow, deque()).append((self._world.clock.now, flight))
        self._waiting += 1
        self._dispatch()
        self._tick_later()

    def first_token(self, flight: Flight) -> None:
        """Only its own scrapes tell it of room; also below."""

    def settled(self, flight: Flight, *, answered: bool) -> None: ...

    def look_at(self, seat: Seat) -> None: ...

    def turned(self) -> None: ...

    def _scrape(self, now: float) -> None:
        self._saturation = saturation(self._world.seats)
        self._world.agenda.push(now + SCRAPE, Next.GATE, self._scrape)
        self._tick_later()

    def _tick_later(self) -> None:
        """Dispatch in a millisecond, if something may be. While it is saturated only a scrape changes that."""
        if self._waiting and not self._ticking and self._saturation < 1:
            self._ticking = True
            self._world.agenda.push(self._world.clock.now + DISPATCH, Next.GATE, self._tick)

    def _tick(self, now: float) -> None:
        self._ticking = False
        self._dispatch()
        self._tick_later()

    def _dispatch(self) -> None:
        self._expire()
        if self._saturation >= 1 or not self._flows:
            return
        flow, waiters = self._flows.popitem(last=False)
        _, flight = waiters.popleft()
        if waiters:
            self._flows[flow] = waiters  # behind the others: its next turn
        self._waiting -= 1
        self._legs.send(flight)

    def _expire(self) -> None:
        latest = self._world.clock.now - TTL
        for flow, waiters in list(self._flows.items()):
            while waiters and waiters[0][0] <= latest:
                self._waiting -= 1
                self._legs.refuse(waiters.popleft()[1], "expired")
            if not waiters:
                del self._flows[flow]
