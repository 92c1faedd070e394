"""A gateway and its engines in virtual time: the production fleet, index and scheduler, and the simulator's engines.

Block ids become token ids and KV events, so that a match goes through the index as in production.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from enum import IntEnum
from heapq import heappop, heappush
from itertools import cycle
from random import Random
from typing import Any

from gateway.api.slo import TPOT, TTFT, read_slo
from gateway.commands.replay.deciders import Decider, Exchange, Shared
from gateway.commands.replay.policies import Policy
from gateway.commands.replay.scene import Scene, What
from gateway.commands.replay.seat import Seat
from gateway.core.clock import ManualClock
from gateway.fleet.settings import EndpointSettings, FleetSettings, ScrapeSettings, StartingCosts
from gateway.framework.request import Slo
from gateway.kvcache.index.block_events import HASH_MASK, BlockRemoved, BlockStored, Event
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
    ROWS = 1
    CALL = 2
    STEP = 3
    SCRAPE = 4
    FETCHED = 5
    CHANGE = 6
    GATE = 7
    TICK = 8


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


class World:
    """One model on the engines of ``scene``, and the gateways before them. Raises ConfigError if ``policy`` is invalid.

    ``deciders``: the gateways, among which requests are dealt in turn. ``model``, ``index``, ``endpoints``: of the
    first. ``by_slot``: the engines; an endpoint has the same slot at each gateway.
    """

    def __init__(self, policy: Policy, scene: Scene, *, block_size: int, seed: int) -> None:
        self.clock, self.agenda = ManualClock(), Agenda()
        self._objectives, self._model_slo = scene.objectives, policy.config.models[0].slo
        self._slos: dict[str, Slo | None] = {}
        machines = scene.machines
        interval = ScrapeSettings() if scene.scrape is None else ScrapeSettings(interval=scene.scrape)
        shared = Shared(
            self.clock,
            tuple(
                EndpointSettings(f"http://e{number}:8000", role=role.value, costs=costs(machine, scene))
                for number, (machine, role) in enumerate(zip(machines, scene.roles, strict=True))
            ),
            FleetSettings(scrape=interval),
            block_size,
            seed,
        )
        self.deciders = [Decider(policy, shared, number) for number in range(scene.deciders)]
        self.exchange = Exchange(self.deciders, scene.delay, shared)
        self.delay = scene.delay
        self._turn = cycle(self.deciders)
        first_decider = self.deciders[0]
        self.model, self.index, self.endpoints = first_decider.model, first_decider.index, first_decider.endpoints
        first = {change.endpoint: change.what for change in reversed(scene.schedule)}
        self.seats: list[Seat] = []
        for number, (places, machine) in enumerate(
            zip(zip(*(each.places for each in self.deciders), strict=True), machines, strict=True)
        ):
            disturbance = Disturbance(scene.noise, Random(f"noise {seed} {number}")) if scene.noise else None
            link = machine.kv_bytes / scene.link.rate, scene.link.latency
            seat = Seat(places, machine, block_size, disturbance, link)
            if first.get(number) is not What.JOIN:
                seat.up()
            self.seats.append(seat)
        self.by_slot = {seat.place.slot: seat for seat in self.seats}

    def next_decider(self) -> Decider:
        """Whose the next call is."""
        return next(self._turn)

    def exchange_rows(self) -> None:
        """After an event: the others hear what has changed, after the delay."""
        if self.exchange.changed:
            rows, delay = self.exchange.rows(), self.delay
            if delay:
                self.agenda.push(self.clock.now + delay, Next.ROWS, rows)
            else:
                self.exchange.tell(rows)

    def slo(self, traffic: str) -> Slo | None:
        """The objectives of a request of this class, from its headers or else from its model."""
        if traffic not in self._slos:
            self._slos[traffic] = read_slo(_headers(self._objectives.asked(traffic)), self._model_slo)
        return self._slos[traffic]

    def forget(self, seat: Seat) -> None:
        """The engine has a new process, which holds nothing and reports everything that it stores."""
        for decider in self.deciders:
            decider.forget(seat.place.slot)

    def hear(self, slot: int, events: list[Event]) -> None:
        """A message with an engine's events has arrived."""
        for decider in self.deciders:
            decider.hear(slot, events)


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
