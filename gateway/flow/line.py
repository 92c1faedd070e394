"""The line of those who wait for one endpoint: its bands, in a band its tenants, of a tenant its requests.

The next is found from the top: the highest band, the tenant whose turn it is, its first request
(``gateway.framework.waiting``). Each step looks at the top of a heap.

Bands are strict, but for a *reserve*: a band with the share r of an endpoint's seconds is owed r times the cost of what
other bands place there while it waits. It goes first while it is owed something, and what it places is paid from that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from gateway.flow.lazy_heap import LazyHeap
from gateway.framework import Order, Tenant, Waiting

W = TypeVar("W", bound=Waiting)

COMPARED = 32
"""Tenants in a band that are looked at one by one, to tell what comes before a newcomer. Of more it is bounded from
above: each gets what its weight gives it, or all that waits goes first, whichever is less."""


@dataclass(slots=True)
class Place:
    """What a request counts for while it waits, whatever becomes of its own fields."""

    seconds: float
    tokens: float
    size: int
    band: int
    tenant: Tenant
    late: bool = False


class Queue(Generic[W]):
    """The requests of one tenant in one band of a line. ``timely``: of its ``seconds``, those of whoever is not
    late."""

    __slots__ = ("entries", "seconds", "timely", "weight")

    def __init__(self, weight: float) -> None:
        self.weight = weight
        self.seconds = self.timely = 0.0
        self.entries: LazyHeap[W] = LazyHeap()


class Band(Generic[W]):
    """The tenants in one band of a line. ``turns``: by the turns that they last had. ``weight``: of all of them."""

    __slots__ = ("queues", "seconds", "turns", "weight")

    def __init__(self) -> None:
        self.queues: dict[str, Queue[W]] = {}
        self.seconds = self.weight = 0.0
        self.turns: LazyHeap[Queue[W]] = LazyHeap()

    def turn_again(self, queue: Queue[W], order: Order) -> None:
        first, _ = queue.entries.top()
        self.turns.set(queue, order.turn(first), first.arrived)

    def first(self, order: Order) -> W:
        """Turns only grow while they are not asked for: if the least that is known has not grown, it is the least."""
        turns = self.turns
        for _ in range(len(turns)):  # no longer, whatever a plugin answers
            queue, known = turns.top()
            first, _ = queue.entries.top()
            turn = order.turn(first)
            if turn <= known:
                return first
            turns.set(queue, turn, first.arrived)
        return turns.top()[0].entries.top()[0]


class Line(Generic[W]):
    """Who waits for one endpoint. ``requests``: how many. ``owed``: by band, seconds of its reserve; below 0: it had
    more."""

    __slots__ = ("bands", "owed", "requests")

    def __init__(self) -> None:
        self.bands: dict[int, Band[W]] = {}
        self.owed: dict[int, float] = {}
        self.requests = 0

    # What happens to a request.

    def put(self, place: Place) -> None:
        """Count a request in, which gets its rank next."""
        queue = self._queue(place.band, place.tenant)
        queue.seconds += place.seconds
        if not place.late:
            queue.timely += place.seconds
        self.bands[place.band].seconds += place.seconds
        self.requests += 1

    def turn_late(self, place: Place) -> None:
        """A request is late from now on."""
        place.late = True
        self.bands[place.band].queues[place.tenant.name].timely -= place.seconds

    def rank(self, entry: W, place: Place, rank: float, order: Order) -> None:
        """Put ``entry`` at its rank among its tenant's requests."""
        band = self.bands[place.band]
        queue = band.queues[place.tenant.name]
        before = queue.entries.first()
        queue.entries.set(entry, rank, entry.arrived)
        if queue.entries.first() is not before:
            band.turn_again(queue, order)

    def turn_again(self, tenant: str, order: Order) -> None:
        """Ask for the turn of a tenant, in all bands in which it waits."""
        for band in self.bands.values():
            queue = band.queues.get(tenant)
            if queue is not None:
                band.turn_again(queue, order)

    def drop(self, entry: W, place: Place) -> None:
        self.requests -= 1
        band = self.bands[place.band]
        queue = band.queues[place.tenant.name]
        queue.entries.discard(entry)
        queue.seconds -= place.seconds
        if not place.late:
            queue.timely -= place.seconds
        band.seconds -= place.seconds
        if not queue.entries:
            del band.queues[place.tenant.name]
            band.weight -= queue.weight
            band.turns.discard(queue)
        if not band.queues:
            del self.bands[place.band]
            if self.owed.get(place.band, 0.0) > 0:
                del self.owed[place.band]  # who does not wait saves nothing up

    def pay(self, band: int, seconds: float, reserve: Mapping[int, float]) -> None:
        """``band`` has had so many seconds of the endpoint."""
        for other, share in reserve.items():
            if other == band:
                self.owed[band] = self.owed.get(band, 0.0) - seconds * (1 - share)
                continue
            owed = self.owed.get(other, 0.0) + seconds * share
            self.owed[other] = owed if other in self.bands else min(0.0, owed)

    # Questions.

    def first(self, order: Order, reserve: Mapping[int, float]) -> W:
        """Who is next; somebody must wait."""
        band = max(self.bands)
        if reserve:
            owed = max(self.bands, key=lambda one: self.owed.get(one, 0.0))
            if self.owed.get(owed, 0.0) > 0:
                band = owed
        return self.bands[band].first(order)

    def ahead(self, number: int, tenant: Tenant) -> float:
        """See ``Lines.ahead``."""
        seconds = sum(band.seconds for other, band in self.bands.items() if other > number)
        band = self.bands.get(number)
        own = None if band is None else band.queues.get(tenant.name)
        if band is None or own is None:
            return seconds
        share = max(0.0, own.timely) / own.weight
        if len(band.queues) > COMPARED:
            return seconds + max(0.0, min(band.seconds, share * band.weight))
        seconds += share * own.weight
        for queue in band.queues.values():
            if queue is not own:
                served = share * queue.weight
                seconds += served if served < queue.seconds else queue.seconds
        return seconds

    def _queue(self, band: int, tenant: Tenant) -> Queue[W]:
        found = self.bands.get(band)
        if found is None:
            found = self.bands[band] = Band()
        queue = found.queues.get(tenant.name)
        if queue is None:
            queue = found.queues[tenant.name] = Queue(0.0)
        found.weight += tenant.weight - queue.weight
        queue.weight = tenant.weight  # a reload may have changed it
        return queue
