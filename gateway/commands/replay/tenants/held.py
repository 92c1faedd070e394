"""The gate that kvgate has: the queue of ``gateway.flow``, in virtual time."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from random import Random
from typing import TYPE_CHECKING

from gateway.commands.replay.deciders import Strict
from gateway.commands.replay.legs import Legs
from gateway.commands.replay.policies import Policy
from gateway.commands.replay.seat import Flight, Seat
from gateway.commands.replay.world import Next, World
from gateway.config.build import build_orders
from gateway.errors import GatewayError, Saturated
from gateway.flow.entry import Entry
from gateway.flow.guarded_order import GuardedOrder
from gateway.flow.queue import HeldQueue
from gateway.flow.settings import QueueSettings
from gateway.framework import Context
from gateway.scheduling.settings import PluginSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.framework import Endpoint, Plan

NAME = "replayed-order"
"""Of the plugin that orders the queue."""


class HeldGate:
    """``queue``: the gateway's own. ``order``: the type of a plugin of ``kvgate.queues``. The queue's other settings
    are those of the policy's first model, if it has a queue. Raises ConfigError for an order that cannot be made."""

    def __init__(self, world: World, legs: Legs, *, policy: Policy, order: str) -> None:
        self._world = world
        self._legs = legs
        self._flights: dict[Entry, Flight] = {}
        self._entries: dict[Flight, Entry] = {}
        self._wakes = inf
        chance = Random("queue")
        config = policy.config
        settings = replace(config.models[0].queue or QueueSettings(), order=NAME)
        config = replace(
            config,
            plugins=(*config.plugins, PluginSettings(name=NAME, type=order)),
            models=(replace(config.models[0], queue=settings),),
        )
        orders = build_orders(config, lambda name: Context(name=name, clock=world.clock, random=chance))
        guarded = GuardedOrder(orders[config.models[0].name], NAME, Strict())
        self._settings = settings
        self.queue = HeldQueue(world.model.name, settings, guarded, self, world.clock, chance)

    # What the replay says

    def arrive(self, flight: Flight) -> None:
        entry = Entry.of(flight, self._settings, self._world.clock.now)
        self._entries[flight], self._flights[entry] = entry, flight
        try:
            self.queue.arrive(entry)
        except GatewayError as error:
            self.refuse(entry, error)
        self.turned()

    def first_token(self, flight: Flight) -> None:
        decode = flight.placement.decode
        self.queue.first_token(decode.endpoint, decode.predicted, self._world.clock.now - decode.at)

    def settled(self, flight: Flight, *, answered: bool) -> None:
        entry = self._entries.pop(flight, None)
        if entry is None:
            return
        del self._flights[entry]
        if answered:
            call = flight.call
            self.queue.settled(entry, output=call.output_tokens, computed=call.input_tokens - flight.reported[1])
        else:
            self.queue.settled(entry, computed=0)

    def look_at(self, seat: Seat) -> None:
        self.queue.look_at(seat.place)

    def turned(self) -> None:
        now = self._world.clock.now
        at = max(now, self.queue.pump())
        if at < self._wakes:
            self._wakes = at
            self._world.agenda.push(at, Next.GATE, self._wake)

    def _wake(self, now: float) -> None:
        if now >= self._wakes:
            self._wakes = inf
            self.turned()

    # What the queue asks for: ``flow.driver.Driver``

    def endpoints(self) -> Sequence[Endpoint]:
        return self._world.endpoints

    def decide(self, entry: Entry) -> Plan:
        return self._legs.decide(self._flights[entry])

    def place(self, entry: Entry, plan: Plan) -> None:
        self._legs.commit(self._flights[entry], plan)

    def refuse(self, entry: Entry, error: Exception) -> None:
        if not isinstance(error, GatewayError):
            raise error
        flight = self._flights.pop(entry)
        del self._entries[flight]
        self._legs.refuse(flight, error.reason if isinstance(error, Saturated) else error.outcome)
