"""One endpoint of a replay with the engine behind it, and the calls that are on their way there."""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heappop, heappush

from gateway.fleet.booking import BOOKED, Booking
from gateway.fleet.core import Place
from gateway.fleet.health import COLDEST
from gateway.fleet.settings import HealthSettings
from gateway.framework import EngineMetrics, Moved, Plan, Request
from gateway.kvcache.keys import BlockKeys
from gateway.kvcache.use import BlockUse
from gateway.replay.workload import Call
from simulator.virtual.engine import Engine
from simulator.virtual.job import Job
from simulator.virtual.link import Link
from simulator.virtual.machine import Machine
from simulator.virtual.noise import Disturbance

SLOW_START = HealthSettings().slow_start


@dataclass(slots=True, eq=False)
class Prefill:
    """A prompt that is computed apart from its answer. ``done``: its KV waits to be fetched."""

    seat: Seat
    job: Job
    booking: Booking
    use: BlockUse
    done: bool = False


@dataclass(slots=True, eq=False)
class Flight:
    """A call on its way. ``plan``, ``booking``, ``use``, ``job``: of its placement, those of the answer. ``prefill``:
    of its prompt, where that is computed apart, until its KV has been fetched. ``split``: the answer's engine does not
    compute the prompt. ``fell_back``: a hand-over failed. ``sent``: the answer's engine has it.

    ``reported``: tokens of the prompt that were expected and found where it was computed. ``deaths``: how often an
    engine died of it, perhaps; ``failed_on``: their slots. ``due``: tokens of its answer with which the ledger is told
    of it again.
    """

    call: Call
    request: Request
    keys: BlockKeys
    plan: Plan = field(init=False)
    booking: Booking = field(init=False)
    use: BlockUse = field(init=False)
    job: Job = field(init=False)
    prefill: Prefill | None = None
    split: bool = False
    fell_back: bool = False
    sent: bool = False
    reported: tuple[int, int] = (0, 0)
    deaths: int = 0
    failed_on: set[int] = field(default_factory=set)
    due: int = 1 + BOOKED


class Seat:
    """``out``, ``into``: its link to other engines, by direction. ``flights``: by the jobs that they have here."""

    def __init__(
        self,
        place: Place,
        machine: Machine,
        block_size: int,
        disturbance: Disturbance | None,
        link: tuple[float, float],
    ) -> None:
        self.place = place
        self.machine = machine
        self.flights: dict[Job, Flight] = {}
        self._block_size = block_size
        self._disturbance = disturbance
        self._link = link
        self._busy = 0.0
        self._begin()

    def _begin(self) -> None:
        """A new process."""
        self.engine = Engine(self.machine, self._block_size, self._disturbance)
        self.out, self.into = Link(*self._link), Link(*self._link)
        self._moved = Moved()
        # Of those that have had their first token: by the engine's count of decoded steps when the ledger is told of
        # each.
        self._due: list[tuple[int, int, Flight]] = []
        self._pushed = 0
        self._warming: float | None = None

    @property
    def busy(self) -> float:
        """Seconds that it computed, all its processes together."""
        return self._busy + self.engine.busy

    def fail(self) -> list[Flight]:
        """Its process dies. Returns those that had a leg there."""
        lost = list(dict.fromkeys(self.flights.values()))
        self.flights = {}
        self._busy += self.engine.busy
        self._begin()
        self.place.engine.up, self.place.engine.down_reason = False, "refused"
        return lost

    def join(self, now: float, *, back: bool) -> None:
        """It is up. ``back``: it was there before, and is brought to its full share slowly."""
        self.place.engine.up, self.place.engine.down_reason = True, ""
        self.place.draining = False
        if back:
            self._warming, self.place.warmth = now, COLDEST

    def begun(self, flight: Flight) -> None:
        """Its first token is there."""
        flight.booking.first_token()
        flight.use.computed()
        flight.booking.reservation.generated(1)
        self._push(0, flight)

    def fetched(self, tokens: int, seconds: float) -> None:
        """KV of so many tokens has come from another engine."""
        moved = self._moved
        self._moved = Moved(
            moved.transfers + 1,
            moved.bytes + tokens * self.machine.kv_bytes,
            moved.seconds + seconds,
            moved.tokens + tokens,
        )

    def progress(self, now: float) -> None:
        """Tell the ledger how far the answers have come, some tokens at a time, as the proxy does."""
        if self._warming is not None:
            self.place.warmth = min(1.0, max(COLDEST, (now - self._warming) / SLOW_START))
            self._warming = None if self.place.warmth == 1.0 else self._warming
        if not self._due:
            return
        decoded = self.engine.decoded(now)
        while self._due and self._due[0][0] <= decoded:
            _, _, flight = heappop(self._due)
            offset = flight.job.offset
            if flight.job.ended_at is not None:
                continue
            if offset is None:  # it was preempted, and generates nothing until it was computed again
                self._push(decoded + BOOKED, flight)
                continue
            more = offset + decoded - flight.due
            if more >= 0:
                more -= more % BOOKED
                flight.booking.reservation.generated(flight.due + more)
                flight.due += more + BOOKED
            self._push(flight.due - offset, flight)

    def _push(self, at: int, flight: Flight) -> None:
        self._pushed += 1
        heappush(self._due, (at, self._pushed, flight))

    def scraped(self, now: float) -> None:
        if not self.place.engine.up:
            return
        engine = self.engine
        self.progress(now)  # else what our own answers have become would be others' load
        self.place.core.scraped(
            EngineMetrics(
                at=now,
                running=len(engine.running),
                waiting=engine.queued,
                kv_usage=engine.kv_usage,
                kv_capacity=engine.capacity,
                block_size=engine.block_size,
                prefix_queries=engine.queries,
                prefix_hits=engine.hits,
                moved=self._moved,
            ),
            asked=now,
        )
