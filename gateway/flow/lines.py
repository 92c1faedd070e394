"""Who waits for which endpoint, who is next, and whom to refuse. Pure: no clock, no chance, no waiting.

Each endpoint has a line of those who wait for it (``line.py``). What a call takes grows with the logarithm of those who
wait; a choice takes no longer with 10,000 requests of some tenants than with 100 of theirs.

``Lines`` reports to the order all that happens to a request: who uses it calls no method of the order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from gateway.flow.guarded_order import GuardedOrder
from gateway.flow.lazy_heap import LazyHeap
from gateway.flow.line import Line, Place
from gateway.framework import Request, Waiting

W = TypeVar("W", bound=Waiting)


@dataclass(slots=True)
class Total:
    """Of some requests that wait: how many, the predicted seconds of engines that they cost, their ``tokens`` (as in
    ``Waiting``), and the bytes that are held for them."""

    requests: int = 0
    seconds: float = 0.0
    tokens: float = 0.0
    size: int = 0

    def add(self, place: Place) -> None:
        self.requests += 1
        self.seconds += place.seconds
        self.tokens += place.tokens
        self.size += place.size

    def subtract(self, place: Place) -> None:
        self.requests -= 1
        if not self.requests:  # without what rounding has left
            self.seconds = self.tokens = 0.0
            self.size = 0
            return
        self.seconds -= place.seconds
        self.tokens -= place.tokens
        self.size -= place.size


class Crowd(Generic[W]):
    """What waits of one tenant in one band, at all endpoints. ``last``: the last in order first."""

    __slots__ = ("last", "total")

    def __init__(self) -> None:
        self.total = Total()
        self.last: LazyHeap[W] = LazyHeap()


class Lines(Generic[W]):
    """The lines of one model's endpoints, by ``endpoint.slot``. ``places``: of all that wait; only to be read."""

    def __init__(self, order: GuardedOrder, reserve: Mapping[int, float] | None = None) -> None:
        """``reserve``: band -> share of an endpoint's seconds, 0..1."""
        self._order = order
        self._reserve = dict(reserve or {})
        self._lines: dict[int, Line[W]] = {}
        self.places: dict[W, Place] = {}
        self._crowds: dict[tuple[int, str], Crowd[W]] = {}
        self._tenants: dict[str, Total] = {}
        self.total = Total()

    def __len__(self) -> int:
        return len(self.places)

    def __contains__(self, entry: W) -> bool:
        return entry in self.places

    def __iter__(self) -> Iterator[W]:
        """All that wait, in the order in which they were put into their lines. Not to be changed meanwhile."""
        return iter(self.places)

    @property
    def slots(self) -> list[int]:
        """Endpoints for which somebody waits."""
        return list(self._lines)

    def of_tenant(self, name: str) -> Total:
        """What waits of one tenant, in all lines and bands. Not to be changed."""
        return self._tenants.get(name) or Total()

    def of_line(self, slot: int) -> int:
        """How many wait for one endpoint."""
        line = self._lines.get(slot)
        return 0 if line is None else line.requests

    def by_band(self) -> dict[tuple[int, str], Total]:
        """What waits, by band and tenant."""
        return {key: crowd.total for key, crowd in self._crowds.items()}

    # What happens to a request.

    def push(self, entry: W, slot: int) -> None:
        """``entry`` begins to wait for the endpoint ``slot``. Raises ValueError if it waits already."""
        if entry in self.places:
            raise ValueError(f"request {entry.request.id} waits already")
        entry.slot = slot
        self._order.queued(entry)
        self._put(entry)

    def take(self, entry: W) -> None:
        """``entry`` is placed on the endpoint for which it waits, ``entry.slot``: it is charged for, and waits no more.

        Raises KeyError if it does not wait. If it is placed elsewhere, ``move`` it there first.
        """
        if entry not in self.places:
            raise KeyError(entry.request.id)
        self._order.placed(entry)
        place = self.places[entry]
        self._lines[entry.slot].pay(place.band, place.seconds, self._reserve)
        self._drop(entry)

    def place_at_once(self, entry: W, slot: int) -> None:
        """``entry`` is placed on the endpoint ``slot`` without having waited: it is charged for."""
        entry.slot = slot
        self._order.queued(entry)
        self._order.placed(entry)
        self._turn_again(entry)

    def remove(self, entry: W) -> bool:
        """``entry`` waits no more and was not placed. False: it did not wait; nothing happens."""
        if entry not in self.places:
            return False
        self._order.left(entry)
        self._drop(entry)
        return True

    def move(self, entry: W, slot: int, cost: float | None = None, tokens: float | None = None) -> None:
        """``entry`` waits for the endpoint ``slot`` from now on, with another ``cost`` and other ``tokens`` if given.

        Raises KeyError if it does not wait.
        """
        if not self.remove(entry):
            raise KeyError(entry.request.id)
        if cost is not None:
            entry.cost = cost
        if tokens is not None:
            entry.tokens = tokens
        self.push(entry, slot)

    def turn_late(self, entry: W) -> None:
        """``entry`` cannot meet its objective any more: its rank is asked for again. Nothing if it does not wait."""
        if entry in self.places and not entry.late:
            entry.late = True
            self._lines[entry.slot].turn_late(self.places[entry])
            self._rank(entry, self.places[entry])

    def settled(self, entry: W, seconds: float, output: float) -> None:
        """What was placed has ended: see ``Order.settled``."""
        self._order.settled(entry, seconds, output)
        for line in self._lines.values():  # its tenant may have a lower turn in each
            line.turn_again(entry.request.tenant.name, self._order)

    def charged_elsewhere(self, band: int, tenant: str, amount: float) -> None:
        """Another replica has charged a tenant; see ``Order``."""
        self._order.charged_elsewhere(band, tenant, amount)
        if amount < 0:  # a turn that only grows is asked for in time
            for line in self._lines.values():
                line.turn_again(tenant, self._order)

    def charges(self) -> Mapping[tuple[int, str], float]:
        """What was charged since the last call; see ``Order``."""
        return self._order.charges()

    # Questions.

    def first(self, slot: int) -> W | None:
        """Who is next at the endpoint ``slot``; None: nobody waits for it."""
        line = self._lines.get(slot)
        return None if line is None else line.first(self._order, self._reserve)

    def firsts(self) -> list[W]:
        """Who is next at each endpoint: the highest band first, in a band who arrived first."""
        found = [line.first(self._order, self._reserve) for line in self._lines.values()]
        return sorted(found, key=lambda entry: (-entry.request.band, entry.arrived))

    def worst(self, tenant: str | None = None) -> W | None:
        """Whom to refuse if fewer may wait: of the lowest band, of the tenant that waits with the most seconds of work
        in it, the request that is last in its order. ``tenant``: of this one only. None: nobody waits."""
        crowds = [
            (band, -crowd.total.seconds, name)
            for (band, name), crowd in self._crowds.items()
            if tenant is None or name == tenant
        ]
        if not crowds:
            return None
        band, _, name = min(crowds)
        return self._crowds[band, name].last.first()

    def ahead(self, request: Request, besides: int | None = None) -> dict[int, float]:
        """By slot, seconds of work that would be placed there before ``request`` if it began to wait.

            all that waits in higher bands + own + the sum over other tenants k of its band of min(B(k), own * w(k) / w)

        own: seconds that its own tenant waits with in this line and band, without those who are late, since who is in
        time goes before them; B(k): those of tenant k; w(k), w: weights. While the own tenant is served, another is
        served as much, by its weight, until it has nothing left. Each endpoint for which anybody waits is there, maybe
        with 0, as ``besides``: that where the request is next already. Meant for ``Request.ahead``.
        """
        return {
            slot: 0.0 if slot == besides else line.ahead(request.band, request.tenant)
            for slot, line in self._lines.items()
        }

    # One place.

    def _put(self, entry: W) -> None:
        band, tenant = entry.request.band, entry.request.tenant
        line = self._lines.get(entry.slot)
        if line is None:
            line = self._lines[entry.slot] = Line()
        crowd = self._crowds.get((band, tenant.name))
        if crowd is None:
            crowd = self._crowds[band, tenant.name] = Crowd()
        own = self._tenants.get(tenant.name)
        if own is None:
            own = self._tenants[tenant.name] = Total()
        self.places[entry] = place = Place(entry.cost, entry.tokens, entry.size, band, tenant, entry.late)
        for total in (self.total, own, crowd.total):
            total.add(place)
        line.put(place)
        self._rank(entry, place)

    def _rank(self, entry: W, place: Place) -> None:
        rank = self._order.rank(entry)
        self._crowds[place.band, place.tenant.name].last.set(entry, -rank, -entry.arrived)
        self._lines[entry.slot].rank(entry, place, rank, self._order)

    def _drop(self, entry: W) -> None:
        place = self.places.pop(entry)
        band, name = place.band, place.tenant.name
        crowd, own, line = self._crowds[band, name], self._tenants[name], self._lines[entry.slot]
        crowd.last.discard(entry)
        for total in (self.total, own, crowd.total):
            total.subtract(place)
        if not crowd.total.requests:
            del self._crowds[band, name]
        if not own.requests:
            del self._tenants[name]
        line.drop(entry, place)
        if line.requests:
            line.turn_again(name, self._order)
        else:
            del self._lines[entry.slot]

    def _turn_again(self, entry: W) -> None:
        line = self._lines.get(entry.slot)
        if line is not None:
            line.turn_again(entry.request.tenant.name, self._order)
