"""``python -m benchmarks.queue_waiting``: what it costs to place the next of 100, 1,000 and 10,000 requests that wait.

The queue with its default order, and the scheduler, ledgers and cost models of a gateway, over eight full endpoints. In
each turn a request ends, those for which there is room then are planned anew and placed, and as many come. All sizes
take turns, so that whatever else runs on the machine meets them alike.
"""

from __future__ import annotations

import argparse
import random
from array import array
from collections import deque
from collections.abc import Sequence
from statistics import median
from time import thread_time
from typing import NamedTuple

from benchmarks.decision import Scene
from benchmarks.kv_table import Figure, show
from gateway.core.clock import SystemClock
from gateway.core.observer import NULL_OBSERVER
from gateway.fleet.load.booking import Booking
from gateway.flow.entry import Entry
from gateway.flow.guarded_order import GuardedOrder
from gateway.flow.queue import HeldQueue
from gateway.flow.settings import QueueSettings
from gateway.framework import Context, Endpoint, NoParameters, Plan, Request, Tenant
from gateway.kvcache.index.keys import BlockKeys
from queues.fair_cost import FairCost

SIZES = (100, 1000, 10_000)
ENDPOINTS, TENANTS = 8, 8
MOST = 10**9
FOR_EVER = 1e6
"""Seconds: nobody is late, or waits too long."""

SETTINGS = QueueSettings(
    *("fair", 0.3, 0.9, 5.0),
    target=FOR_EVER,
    max_wait=FOR_EVER,
    patience=FOR_EVER,
    max_requests=MOST,
    max_tokens=MOST,
    per_tenant=MOST,
)


class Call(NamedTuple):
    request: Request
    keys: BlockKeys


class Crowd:
    """``waiting`` requests that wait, and as many on the endpoints as have room there. Its own driver."""

    def __init__(self, waiting: int) -> None:
        clock, chance = SystemClock(), random.Random(1)
        self.waiting = waiting
        self._scene = Scene(ENDPOINTS)
        for kept in self._scene.kept:
            kept.settle()
        self._tenants = [Tenant(f"tenant-{number}") for number in range(TENANTS)]
        self._came = 0
        self._placed: deque[tuple[Entry, Booking]] = deque()
        order = GuardedOrder(FairCost(NoParameters(), Context("fair", clock, chance)), "fair", NULL_OBSERVER)
        self._queue = HeldQueue("m", SETTINGS, order, self, clock, chance)
        self._now = clock.monotonic
        self._fill()

    def turn(self) -> tuple[float, int]:
        """Returns seconds of CPU, and how many were placed."""
        entry, booking = self._placed.popleft()
        before, began = len(self._placed), thread_time()
        booking.first_token()
        booking.settle()
        self._queue.settled(entry, output=100.0)
        self._queue.pump()
        self._fill()
        return thread_time() - began, len(self._placed) - before

    def _fill(self) -> None:
        while self._queue.waiting < self.waiting:
            request = self._scene.request()
            request.tenant = self._tenants[self._came % TENANTS]
            self._came += 1
            call = Call(request, BlockKeys(array("Q"), 16, request.prompt_tokens, exact=True, whole=True))
            self._queue.arrive(Entry.of(call, SETTINGS, self._now()))

    # What the queue asks of its driver

    def endpoints(self) -> Sequence[Endpoint]:
        return self._scene.endpoints

    def decide(self, entry: Entry) -> Plan:
        return self._scene.scheduler.schedule(entry.request, self._scene.endpoints, None)

    def place(self, entry: Entry, plan: Plan) -> None:
        now = self._now()
        booking = Booking(entry.request, plan.decode, now)
        booking.book_prompt(now, reported=True)
        self._placed.append((entry, booking))

    def refuse(self, entry: Entry, error: Exception) -> None:
        raise error


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.queue_waiting", description=__doc__)
    parser.add_argument("--rounds", type=int, default=40, help="of 20 turns of each size (40)")
    options = parser.parse_args()
    crowds = {size: Crowd(size) for size in SIZES}
    took: dict[int, list[float]] = {size: [] for size in SIZES}
    for _ in range(options.rounds):
        for size, crowd in crowds.items():
            turns = [crowd.turn() for _ in range(20)]
            took[size].append(sum(seconds for seconds, _ in turns) / max(1, sum(placed for _, placed in turns)) * 1e6)
    show(
        "a placement from the queue, with the decision, and another that comes",
        [Figure(f"{size:,} waiting, median", median(took[size]), "us") for size in SIZES],
    )


if __name__ == "__main__":
    main()
