"""A gateway and its engines in virtual time: the real fleet, index and scheduler, and engines of the simulator's."""

from __future__ import annotations

from random import Random

from gateway.api.slo import TPOT, TTFT, read_slo
from gateway.config.wiring import wire
from gateway.fleet.core import Place
from gateway.fleet.fleet import Fleet
from gateway.fleet.settings import CostSettings, EndpointSettings, FleetSettings, ScrapeSettings
from gateway.framework import Context, ManualClock, Model, Observer, Slo
from gateway.kvcache.events import Event
from gateway.kvcache.index import CacheIndex
from gateway.kvcache.settings import CacheSettings
from gateway.replay.policies import Wiring
from gateway.replay.scene import Scene
from gateway.replay.schedule import What
from gateway.replay.seat import Seat
from simulator.virtual.machine import Machine
from simulator.virtual.noise import Disturbance


class Strict(Observer):
    """Counts nothing. In service a scorer that fails is silent; what a replay says of a policy must not be another
    policy's."""

    def plugin_failed(self, kind: str, name: str, error: BaseException) -> None:
        raise error


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
        first = {change.endpoint: change.what for change in reversed(scene.schedule)}
        self.seats: list[Seat] = []
        for number, (endpoint, machine) in enumerate(zip(self.fleet.endpoints(self.model), machines, strict=True)):
            assert isinstance(endpoint, Place)
            if first.get(number) is not What.JOIN:
                endpoint.engine.up, endpoint.engine.down_reason = True, ""
            self.index.add(endpoint, events=True)
            self.index.believe(endpoint.slot)
            disturbance = Disturbance(scene.noise, Random(f"noise {seed} {number}")) if scene.noise else None
            link = machine.kv_bytes / scene.link.rate, scene.link.latency
            self.seats.append(Seat(endpoint, machine, block_size, disturbance, link))
        self.endpoints = self.fleet.endpoints(self.model)
        self.by_slot = {seat.place.slot: seat for seat in self.seats}

    def slo(self, traffic: str) -> Slo | None:
        """What a request of this class asks for, as its headers say it; and its model, where they say nothing."""
        if traffic not in self._slos:
            self._slos[traffic] = read_slo(_headers(self._objectives.asked(traffic)), self._model_slo)
        return self._slos[traffic]

    def forget(self, seat: Seat) -> None:
        """Its engine has a new process, which holds nothing and tells of all that it will hold."""
        self.index.forget(seat.place.slot)
        self.index.believe(seat.place.slot)

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
        fit=scene.fitted and scale == step_scale == 1,
    )
