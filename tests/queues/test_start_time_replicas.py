"""Two replicas with a queue each, before the same engines, in virtual time: what a light tenant gets beside a greedy
one by one queue, by two that do not know of each other, and by two that tell each other what they charge.

The figures in ``docs/decisions/replicas.md`` are of ``served``, until 350 s, with seeds 0 to 5.
"""

from __future__ import annotations

import heapq
import random
from collections import defaultdict, deque
from itertools import count
from statistics import mean

import pytest

from gateway.framework import Context, NoParameters, Waiting
from queues.fair_cost import FairCost
from tests.support.waiting import waiting

SLOTS = 16
"""Requests that the engines serve at once; each takes as many seconds as it costs, one on average."""

BEGIN, END = 30.0, 130.0
"""Seconds: what waits from the begin on is counted, until the end."""

CROWD = 200
"""Requests of one tenant that wait at most."""

BEAT = 1.0
"""Seconds between two words of a replica about what it has charged."""


class Replica:
    def __init__(self) -> None:
        self.order = FairCost(NoParameters(), Context.__new__(Context))
        self.waiting: dict[str, deque[Waiting]] = defaultdict(deque)

    def put(self, one: Waiting) -> None:
        queue = self.waiting[one.request.tenant.name]
        if len(queue) < CROWD:
            self.order.queued(one)
            queue.append(one)

    def next(self) -> Waiting | None:
        firsts = [queue[0] for queue in self.waiting.values() if queue]
        if not firsts:
            return None
        one = min(firsts, key=lambda first: (self.order.turn(first), first.arrived))
        self.waiting[one.request.tenant.name].popleft()
        self.order.placed(one)
        return one


def served(share: float, at: dict[str, list[int]], *, replicas: int, told: bool, seed: int) -> tuple[float, float]:
    """The light tenant's mean wait in seconds, and its part of the engines' time. ``share``: of this time that it asks
    for; the greedy one asks for one and a half times all of it. ``at``: replicas to which each one's requests go.
    """
    chance, number, now, free = random.Random(seed), count(), 0.0, SLOTS
    them = [Replica() for _ in range(replicas)]
    rates = {"greedy": 1.5 * SLOTS, "light": share * SLOTS}
    events = [(chance.expovariate(rate), next(number), "comes", name, 0) for name, rate in rates.items()]
    if told:
        events += [(BEAT * (one + 1) / replicas, next(number), "tells", None, one) for one in range(replicas)]
    heapq.heapify(events)
    waits, given = [], 0.0
    while now < END:
        now, _, what, whose, where = heapq.heappop(events)
        if what == "comes":
            one = waiting(whose, chance.expovariate(1.0), arrived=now)
            them[chance.choice(at[whose]) % replicas].put(one)
            heapq.heappush(events, (now + chance.expovariate(rates[whose]), next(number), "comes", whose, 0))
        elif what == "tells":
            for (band, tenant), amount in them[where].order.charges().items():
                for other in them:
                    if other is not them[where]:
                        other.order.charged_elsewhere(band, tenant, amount)
            heapq.heappush(events, (now + BEAT, next(number), "tells", None, where))
        else:
            free += 1
            them[where].order.settled(whose, whose.cost, 0.0)
        # Whichever replica sees first that there is room.
        while free and (able := [one for one in range(replicas) if any(them[one].waiting.values())]):
            where = chance.choice(able)
            one = them[where].next()
            free -= 1
            heapq.heappush(events, (now + one.cost, next(number), "ends", one, where))
            if now >= BEGIN and one.request.tenant.name == "light":
                waits.append(now - one.arrived)
                given += one.cost
    return mean(waits), given / SLOTS / (END - BEGIN)


def test_who_waits_at_one_replica_gets_what_one_queue_would_give_it() -> None:
    """Without a word between them it would get half of what its replica does, which is half of all."""
    at = {"greedy": [0, 1], "light": [0]}
    one, alone, told = (
        served(0.4, at, seed=5, replicas=replicas, told=told) for replicas, told in ((1, False), (2, False), (2, True))
    )
    assert one[1] == pytest.approx(told[1], abs=0.04)
    assert told[1] > 0.35 > 0.28 > alone[1]
    assert told[0] < 2.5 * one[0] < 10 < alone[0]
