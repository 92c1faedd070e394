"""One endpoint of a replay, the engine behind it, and the calls that are under way there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from gateway.commands.replay.deciders import Decider
from gateway.commands.replay.workload import TraceCall
from gateway.fleet.engine import FleetEndpoint
from gateway.fleet.health import COLDEST
from gateway.fleet.load.booking import BOOKING_STEP
from gateway.fleet.settings import HealthSettings
from gateway.framework import Request
from gateway.framework.fleet import EngineMetrics, TransferStats
from gateway.kvcache.index.keys import BlockKeys
from gateway.placement.placing import Placement
from simulator.virtual.engine import Engine
from simulator.virtual.job import Job
from simulator.virtual.link import Link
from simulator.virtual.machine import Machine
from simulator.virtual.noise import Disturbance

SLOW_START = HealthSettings().slow_start


@dataclass(slots=True, eq=False)
class Prefill:
    """A prefill leg. ``done``: its KV waits to be fetched."""

    seat: Seat
    job: Job
    done: bool = False


@dataclass(slots=True, eq=False)
class Flight:
    """A call that is under way. ``decider``: the gateway whose it is. ``job``: of the answer. ``prefill``: the prefill
    leg, if there is one, until its KV has been fetched. ``fell_back``: a hand-over failed. ``sent``: the decode engine
    has the request.

    ``reported``: prompt tokens that were expected and found in the cache where the prompt was computed. ``deaths``:
    number of engines that died while they served it; ``failed_on``: their slots. ``due``: tokens of the answer after
    which the ledger is updated again.
    """

    call: TraceCall
    request: Request
    keys: BlockKeys
    decider: Decider
    placement: Placement = field(init=False)
    job: Job = field(init=False)
    prefill: Prefill | None = None
    fell_back: bool = False
    sent: bool = False
    reported: tuple[int, int] = (0, 0)
    deaths: int = 0
    failed_on: set[int] = field(default_factory=set)
    due: int = 1 + BOOKING_STEP


class Seat:
    """``places``: its endpoint at each gateway, of which ``place`` is the first. ``out``, ``into``: the link to other
    engines, by direction. ``flights``: the calls by their jobs here."""

    def __init__(
        self,
        places: Sequence[FleetEndpoint],
        machine: Machine,
        block_size: int,
        disturbance: Disturbance | None,
        link: tuple[float, float],
    ) -> None:
        self.places, self.place = places, places[0]
        self.machine = machine
        self.flights: dict[Job, Flight] = {}
        self._block_size = block_size
        self._disturbance = disturbance
        self._link = link
        self._busy = 0.0
        self._begin()

    def _begin(self) -> None:
        """Start a new process."""
        self.engine = Engine(self.machine, self._block_size, self._disturbance)
        self.out, self.into = Link(*self._link), Link(*self._link)
        self._transfers = TransferStats()
        # The calls that have had their first token, by the decode step after which each updates the ledger.
        self._due: list[tuple[int, int, Flight]] = []
        self._pushed = 0
        self._warming: float | None = None

    @property
    def busy(self) -> float:
        """Seconds that its processes were computing, all together."""
        return self._busy + self.engine.busy

    def fail(self) -> list[Flight]:
        """The process dies. Returns the calls that had a leg there."""
        lost = list(dict.fromkeys(self.flights.values()))
        self.flights = {}
        self._busy += self.engine.busy
        self._begin()
        for place in self.places:
            place.engine.up, place.engine.down_reason = False, "refused"
        return lost

    def up(self) -> None:
        """The process is up, and all gateways know."""
        for place in self.places:
            place.engine.up, place.engine.down_reason, place.draining = True, "", False

    def drain(self) -> None:
        """It gets no new calls."""
        for place in self.places:
            place.draining = True

    def join(self, now: float, *, back: bool) -> None:
        """The process is up. ``back``: it was up before, so that its share of requests grows slowly."""
        self.up()
        if back:
            self._warming = now
            self._warm(COLDEST)

    def begun(self, flight: Flight) -> None:
        """The first token of a call is there."""
        flight.placement.decode.computed()
        flight.placement.decode.set_generated(1)
        self._push(0, flight)

    def fetched(self, tokens: int, seconds: float) -> None:
        """KV of ``tokens`` tokens has arrived from another engine."""
        transfers = self._transfers
        self._transfers = TransferStats(
            transfers.count + 1,
            transfers.bytes + tokens * self.machine.kv_bytes,
            transfers.seconds + seconds,
            transfers.tokens + tokens,
        )

    def progress(self, now: float) -> None:
        """Update the ledger with the progress of the answers, some tokens at a time, as the proxy does."""
        if self._warming is not None:
            self._warm(min(1.0, max(COLDEST, (now - self._warming) / SLOW_START)))
            self._warming = None if self.place.warmth == 1.0 else self._warming
        if not self._due:
            return
        decoded = self.engine.decoded(now)
        while self._due and self._due[0][0] <= decoded:
            _, _, flight = heappop(self._due)
            offset = flight.job.offset
            if flight.job.ended_at is not None:
                continue
            if offset is None:  # it was preempted: it generates nothing until its tokens are computed again
                self._push(decoded + BOOKING_STEP, flight)
                continue
            more = offset + decoded - flight.due
            if more >= 0:
                more -= more % BOOKING_STEP
                flight.placement.decode.set_generated(flight.due + more)
                flight.due += more + BOOKING_STEP
            self._push(flight.due - offset, flight)

    def _warm(self, warmth: float) -> None:
        for place in self.places:
            place.warmth = warmth

    def _push(self, at: int, flight: Flight) -> None:
        self._pushed += 1
        heappush(self._due, (at, self._pushed, flight))

    def scraped(self, now: float) -> None:
        if not self.place.engine.up:
            return
        engine = self.engine
        self.progress(now)  # otherwise the growth of our own answers would count as foreign load
        metrics = EngineMetrics(
            at=now,
            running=len(engine.running),
            waiting=engine.queued,
            kv_usage=engine.kv_usage,
            kv_capacity=engine.capacity,
            block_size=engine.block_size,
            prefix_queries=engine.queries,
            prefix_hits=engine.hits,
            transfers=self._transfers,
        )
        for place in self.places:
            place.core.apply_scrape(metrics, asked=now)
