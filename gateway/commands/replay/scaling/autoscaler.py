"""A fleet whose size follows a trigger, in virtual time: KEDA and an HPA in front of engines that take long to start.

Every ``POLL`` seconds it asks the trigger. It starts what is missing at once. It stops an engine only if no more were
asked for in the last ``STABLE`` seconds: first what has not joined yet, then those with the fewest requests. An engine
that starts is paid from then on and joins after a delay, with an empty cache; one that stops gets no new calls, and is
paid until its last one has ended. These are the defaults of KEDA and of an HPA.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import fmean

from gateway.commands.replay.legs import Legs
from gateway.commands.replay.scaling.triggers import Figures, Trigger
from gateway.commands.replay.seat import Flight, Seat
from gateway.commands.replay.world import Next, World
from gateway.fleet.load.demand import DemandMeter
from gateway.fleet.load.wanted import wanted_together
from gateway.flow.room import queued_seconds
from gateway.framework.request import Slo

POLL = 15.0
"""Seconds between two looks: KEDA's polling interval in llm-d's guide, and an HPA's own."""

STABLE = 300.0
"""Seconds of an HPA's stabilization window for scaling down."""


class Autoscaler:
    """The ``Gate`` of a run. Of the engines of the world it starts with ``first``, and runs at most all of them, at
    least one. ``join``: seconds from an engine's start until it serves. ``slo``: for which engines are wanted."""

    def __init__(self, world: World, legs: Legs, *, trigger: Trigger, first: int, join: float, slo: Slo) -> None:
        self._world = world
        self._legs = legs
        self._trigger = trigger
        self._join = join
        self._slo = slo
        self._meter = DemandMeter(0.0)
        self._asked: deque[tuple[float, int]] = deque()
        self._active = list(world.seats[:first])
        self._starting: dict[Seat, float] = {}
        self._stopping: dict[Seat, None] = {}
        self._since = dict.fromkeys(self._active, 0.0)
        self._paid = 0.0
        self.most = first
        legs.scheduled = True
        for seat in world.seats[first:]:
            seat.fail()
        world.agenda.push(POLL, Next.GATE, self._look)

    @property
    def paid(self) -> float:
        """Engine seconds until now."""
        now = self._world.clock.now
        return self._paid + sum(now - since for since in self._since.values())

    # What the replay says

    def arrive(self, flight: Flight) -> None:
        now = self._world.clock.now
        self._meter.came(now)
        self._legs.send(flight)
        request = flight.request
        new = flight.placement.computes.new_tokens
        self._meter.placed(now, request.prompt_tokens, new, request.expected_output)

    def first_token(self, flight: Flight) -> None:
        pass

    def settled(self, flight: Flight, *, answered: bool) -> None:
        for seat in [seat for seat in self._stopping if not seat.flights]:
            self._gone(seat)

    def look_at(self, seat: Seat) -> None:
        pass

    def turned(self) -> None:
        pass

    # What it does

    def _look(self, now: float) -> None:
        self._world.agenda.push(now + POLL, Next.GATE, self._look)
        engines = len(self._active) + len(self._starting)
        asked = max(1, min(self._trigger.desired(self._figures(engines, now)), len(self._world.seats)))
        self._asked.append((now, asked))
        while self._asked[0][0] <= now - STABLE:
            self._asked.popleft()
        if asked > engines:
            for seat in self._absent()[: asked - engines]:
                self._starting[seat] = self._since[seat] = now
                self._world.agenda.push(now + self._join, Next.GATE, lambda at, seat=seat: self._joins(seat, at))
        else:
            for _ in range(engines - max(count for _, count in self._asked)):
                self._stop()
        self.most = max(self.most, len(self._since))

    def _figures(self, engines: int, now: float) -> Figures:
        places = [seat.place for seat in self._active]
        backlog = sum(queued_seconds(place, now) for place in places)
        running = sum(place.load.requests for place in places)
        demand, wanted = self._meter.demand(now, backlog=backlog, running=running), 0
        if demand is not None:
            one = places[0]
            wanted = wanted_together(demand, one.cost.scalars, self._slo, float(one.metrics.kv_capacity)).engines
        there = [seat.engine for seat in (*self._active, *self._stopping)]
        waiting = sum(engine.queued for engine in there)
        in_flight = waiting + sum(len(engine.running) for engine in there)
        return Figures(engines, wanted, in_flight, waiting, fmean(seat.engine.kv_usage for seat in self._active))

    def _absent(self) -> Sequence[Seat]:
        return [seat for seat in self._world.seats if seat not in self._since]

    def _joins(self, seat: Seat, now: float) -> None:
        started = self._starting.get(seat)
        if started is None or started + self._join > now:
            return  # it was stopped before it had joined
        del self._starting[seat]
        self._active.append(seat)
        seat.join(now, back=False)
        seat.scraped(now)

    def _stop(self) -> None:
        if self._starting:
            seat, _ = self._starting.popitem()
            self._gone(seat)
            return
        seat = min(self._active, key=lambda one: len(one.flights))
        self._active.remove(seat)
        self._stopping[seat] = None
        seat.drain()
        if not seat.flights:
            self._gone(seat)

    def _gone(self, seat: Seat) -> None:
        self._stopping.pop(seat, None)
        self._paid += self._world.clock.now - self._since.pop(seat)
        seat.fail()
        self._world.forget(seat)
