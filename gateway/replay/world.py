"""A gateway and its engines in virtual time: the real fleet, index and scheduler, and engines of the simulator's."""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random

from gateway.api.slo import TPOT, TTFT, read_slo
from gateway.config.wiring import wire
from gateway.fleet.booking import BOOKED, Booking
from gateway.fleet.core import Place
from gateway.fleet.fleet import Fleet
from gateway.fleet.settings import CostSettings, EndpointSettings, FleetSettings, ScrapeSettings
from gateway.framework import Context, EngineMetrics, ManualClock, Model, Observer, Plan, Request, Slo
from gateway.kvcache.events import Event
from gateway.kvcache.index import CacheIndex
from gateway.kvcache.settings import CacheSettings
from gateway.kvcache.use import BlockUse
from gateway.replay.policies import Wiring
from gateway.replay.scene import Scene
from gateway.replay.workload import Call
from simulator.virtual.engine import Engine
from simulator.virtual.job import Job
from simulator.virtual.machine import Machine
from simulator.virtual.noise import Disturbance


class Strict(Observer):
    """Counts nothing. In service a scorer that fails is silent; what a replay says of a policy must not be another
    policy's."""

    def plugin_failed(self, kind: str, name: str, error: BaseException) -> None:
        raise error


@dataclass(slots=True, eq=False)
class Flight:
    """A call that has been placed and has not ended. ``due``: tokens of its answer with which the ledger is told of it
    again."""

    call: Call
    job: Job
    request: Request
    plan: Plan
    booking: Booking
    use: BlockUse
    due: int = 1 + BOOKED


@dataclass(slots=True, eq=False)
class Seat:
    """One endpoint and the engine behind it."""

    place: Place
    engine: Engine
    flights: dict[Job, Flight] = field(default_factory=dict)
    # Of those that have had their first token: by the engine's count of decoded steps when the ledger is told of each.
    _due: list[tuple[int, int, Flight]] = field(default_factory=list)
    _pushed: int = 0

    def begun(self, flight: Flight) -> None:
        """Its first token is there."""
        flight.booking.first_token()
        flight.use.computed()
        flight.booking.reservation.generated(1)
        self._push(0, flight)

    def progress(self, now: float) -> None:
        """Tell the ledger how far the answers have come, some tokens at a time, as the proxy does."""
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
            ),
            asked=now,
        )


class World:
    """One model on the engines of ``scene``. Raises ConfigError where ``wiring`` is wrong."""

    def __init__(self, wiring: Wiring, scene: Scene, *, block_size: int, seed: int) -> None:
        # Not the workload's stream of the same seed, nor the scrapes': a draw would be the twin of an arrival's.
        chance = Random(f"placement {seed}")
        observer = Strict()
        self.clock = ManualClock()
        self.scheduler = wire(
            wiring.config, lambda name: Context(name=name, clock=self.clock, random=chance, observer=observer)
        )
        self.model = Model(name="replay", handler=wiring.handler)
        self._objectives, self._model_slo = scene.objectives, wiring.config.models[0].slo
        self._slos: dict[str, Slo | None] = {}
        machines = scene.machines
        interval = ScrapeSettings() if scene.scrape is None else ScrapeSettings(interval=scene.scrape)
        self.fleet = Fleet(
            models=[
                (
                    self.model,
                    [
                        EndpointSettings(f"http://e{number}:8000", role=role.value, cost=costs(machine, scene))
                        for number, (machine, role) in enumerate(zip(machines, scene.roles, strict=True))
                    ],
                )
            ],
            settings=FleetSettings(scrape=interval),
            clock=self.clock,
            observer=observer,
            random=chance,
        )
        # An engine's first scrape, before its first request, tells its block size.
        self.index = CacheIndex(CacheSettings(block_size=block_size), self.model.name, self.clock, observer)
        self.seats: list[Seat] = []
        for number, (endpoint, machine) in enumerate(zip(self.fleet.endpoints(self.model), machines, strict=True)):
            assert isinstance(endpoint, Place)
            endpoint.engine.up, endpoint.engine.down_reason = True, ""
            self.index.add(endpoint, events=True)
            self.index.believe(endpoint.slot)
            disturbance = Disturbance(scene.noise, Random(f"noise {seed} {number}")) if scene.noise else None
            self.seats.append(Seat(endpoint, Engine(machine, block_size, disturbance)))
        self.endpoints = self.fleet.endpoints(self.model)
        self.by_slot = {seat.place.slot: seat for seat in self.seats}

    def slo(self, traffic: str) -> Slo | None:
        """What a request of this class asks for, as its headers say it; and its model, where they say nothing."""
        if traffic not in self._slos:
            self._slos[traffic] = read_slo(_headers(self._objectives.asked(traffic)), self._model_slo)
        return self._slos[traffic]

    def hear(self, slot: int, events: list[Event]) -> None:
        """A message of an engine's events has come."""
        self.index.take(slot, events)
        self.index.tell(slot)


def _headers(slo: Slo | None) -> dict[str, str]:
    asked = {TTFT: slo.ttft, TPOT: slo.tpot} if slo is not None else {}
    return {name: f"{seconds * 1000:.9f}" for name, seconds in asked.items() if seconds is not None}


def costs(machine: Machine, scene: Scene) -> CostSettings:
    """What the gateway believes at the start of an engine on ``machine``. Of a machine nothing is held in storage."""
    told, scale = scene.believed or machine, scene.cost_scale
    step_scale = scale if scene.step_scale is None else scene.step_scale
    return CostSettings(
        prefill_token=told.prefill_token * scale,
        prefill_quadratic=told.prefill_quadratic * scale,
        step=told.step * step_scale,
        step_request=told.step_request * step_scale,
        kv_token=told.kv_token * step_scale,
        cpu_fetch=told.fetch_token * scale,
        storage_fetch=0.0,
        step_tokens=told.max_batched_tokens,
        fit=scale == step_scale == 1,
    )
