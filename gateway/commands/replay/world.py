"""A gateway and its engines in virtual time: the production fleet, index and scheduler, and the simulator's engines.

Block ids become token ids and KV events, so that a match goes through the index as in production.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from enum import IntEnum
from heapq import heappop, heappush
from random import Random
from typing import Any

from gateway.api.slo import TPOT, TTFT, read_slo
from gateway.commands.replay.policies import Policy
from gateway.commands.replay.scene import Scene, What
from gateway.commands.replay.seat import Seat
from gateway.config.build import build_scheduler
from gateway.core.clock import ManualClock
from gateway.core.observer import Observer
from gateway.fleet.engine import FleetEndpoint
from gateway.fleet.fleet import Fleet
from gateway.fleet.settings import EndpointSettings, FleetSettings, ScrapeSettings, StartingCosts
from gateway.framework import Context
from gateway.framework.fleet import Model
from gateway.framework.request import Slo
from gateway.kvcache.index.block_events import HASH_MASK, BlockRemoved, BlockStored, Event
from gateway.kvcache.index.cache_index import CacheIndex
from gateway.kvcache.settings import CacheSettings
from simulator.virtual.machine import Machine
from simulator.virtual.noise import Disturbance
from simulator.virtual.pool import PoolEvent, Stored, Tier

TOKEN_MASK = (1 << 32) - 1
"""Token ids have 32 bits."""


def token_ids(blocks: Sequence[int], block_size: int) -> array[int]:
    """Make each block ``block_size`` times one number. A block's key depends on all blocks before it, so an id that was
    reduced to 32 bits could be confused only with another one behind the same block."""
    try:
        folded = array("I", blocks)
    except OverflowError:
        folded = array("I", [(block ^ block >> 32) & TOKEN_MASK for block in blocks])
    ids = array("I", bytes(len(folded) * block_size * folded.itemsize))
    for position in range(block_size):  # far fewer than blocks, and each is one loop in C
        ids[position::block_size] = folded
    return ids


def as_event(event: PoolEvent, block_size: int) -> Event:
    """An event as vLLM sends it. The hashes are the ids."""
    hashes: list[int | bytes] = [each & HASH_MASK for each in event.ids]
    if not isinstance(event, Stored):
        return BlockRemoved(hashes, medium=event.tier.value)
    if event.tier is not Tier.GPU:
        return BlockStored(hashes, medium=event.tier.value)
    return BlockStored(
        hashes,
        parent_block_hash=None if event.parent is None else event.parent & HASH_MASK,
        token_ids=token_ids(event.ids, block_size).tolist(),
        block_size=block_size,
        medium=Tier.GPU.value,
    )


class Next(IntEnum):
    """The kinds of events. Of events at the same time, the lower number comes first."""

    EVENTS = 0
    CALL = 1
    STEP = 2
    SCRAPE = 3
    FETCHED = 4
    CHANGE = 5
    GATE = 6


class Agenda:
    """A queue ordered by time, then by ``Next``, then by the order of insertion."""

    def __init__(self) -> None:
        self._queue: list[tuple[float, Next, int, Any]] = []
        self.pushed = 0

    def push(self, at: float, what: Next, of: Any) -> None:
        """Add an event. ``of``: the object that it happens to."""
        self.pushed += 1
        heappush(self._queue, (at, what, self.pushed, of))

    def pop(self) -> tuple[float, Next, Any]:
        """Remove and return the next event. Raises IndexError if the queue is empty."""
        at, what, _, of = heappop(self._queue)
        return at, what, of


class Strict(Observer):
    """An observer that counts nothing, and raises what a scorer raises. In production a failing scorer is skipped; in a
    replay that would measure another policy."""

    def plugin_failed(self, kind: str, name: str, error: BaseException) -> None:
        raise error


class World:
    """One model on the engines of ``scene``. Raises ConfigError if ``policy`` is invalid."""

    def __init__(self, policy: Policy, scene: Scene, *, block_size: int, seed: int) -> None:
        # A random stream of its own: with the workload's or the scrapes', draws would repeat the arrivals'.
        chance = Random(f"placement {seed}")
        observer = Strict()
        self.clock, self.agenda = ManualClock(), Agenda()
        self.scheduler = build_scheduler(
            policy.config, lambda name: Context(name=name, clock=self.clock, random=chance), observer=observer
        )
        self.model = Model(name="replay", handler=policy.handler)
        self._objectives, self._model_slo = scene.objectives, policy.config.models[0].slo
        self._slos: dict[str, Slo | None] = {}
        machines = scene.machines
        interval = ScrapeSettings() if scene.scrape is None else ScrapeSettings(interval=scene.scrape)
        self.fleet = Fleet(
            models=[
                (
                    self.model,
                    [
                        EndpointSettings(f"http://e{number}:8000", role=role.value, costs=costs(machine, scene))
                        for number, (machine, role) in enumerate(zip(machines, scene.roles, strict=True))
                    ],
                )
            ],
            settings=FleetSettings(scrape=interval),
            clock=self.clock,
            observer=observer,
            random=chance,
        )
        # The first scrape of an engine, before its first request, reports the block size.
        self.index = CacheIndex(CacheSettings(block_size=block_size), self.model.name, self.clock, observer)
        first = {change.endpoint: change.what for change in reversed(scene.schedule)}
        self.seats: list[Seat] = []
        for number, (endpoint, machine) in enumerate(zip(self.fleet.endpoints(self.model), machines, strict=True)):
            assert isinstance(endpoint, FleetEndpoint)
            if first.get(number) is not What.JOIN:
                endpoint.engine.up, endpoint.engine.down_reason = True, ""
            self.index.add(endpoint, events=True)
            self.index.set_complete(endpoint.slot)
            disturbance = Disturbance(scene.noise, Random(f"noise {seed} {number}")) if scene.noise else None
            link = machine.kv_bytes / scene.link.rate, scene.link.latency
            self.seats.append(Seat(endpoint, machine, block_size, disturbance, link))
        self.endpoints = self.fleet.endpoints(self.model)
        self.by_slot = {seat.place.slot: seat for seat in self.seats}

    def slo(self, traffic: str) -> Slo | None:
        """The objectives of a request of this class, from its headers or else from its model."""
        if traffic not in self._slos:
            self._slos[traffic] = read_slo(_headers(self._objectives.asked(traffic)), self._model_slo)
        return self._slos[traffic]

    def forget(self, seat: Seat) -> None:
        """The engine has a new process, which holds nothing and reports everything that it stores."""
        self.index.clear(seat.place.slot)
        self.index.set_complete(seat.place.slot)

    def hear(self, slot: int, events: list[Event]) -> None:
        """A message with an engine's events has arrived."""
        self.index.apply(slot, events)
        self.index.report_counts(slot)


def _headers(slo: Slo | None) -> dict[str, str]:
    asked = {TTFT: slo.ttft, TPOT: slo.tpot} if slo is not None else {}
    return {name: f"{seconds * 1000:.9f}" for name, seconds in asked.items() if seconds is not None}


def costs(machine: Machine, scene: Scene) -> StartingCosts:
    """The costs that the gateway assumes at the start for an engine on ``machine``. Machines have no storage tier."""
    believed, scale = scene.believed or machine, scene.cost_scale
    step_scale = scale if scene.step_scale is None else scene.step_scale
    return StartingCosts(
        prefill_token=believed.prefill_token * scale,
        prefill_quadratic=believed.prefill_quadratic * scale,
        step=believed.step * step_scale,
        step_request=believed.step_request * step_scale,
        kv_token=believed.kv_token * step_scale,
        cpu_fetch=believed.fetch_token * scale,
        storage_fetch=0.0,
        step_tokens=believed.max_batched_tokens,
        fit=scene.fitted and scale == step_scale == 1,
    )
