"""One run: a workload is served by the gateway's own code in virtual time.

The loop takes events from a queue in order of time: a call arrives, an engine finishes a step, its KV events reach the
gateway, an engine is scraped, KV has moved between engines, an engine fails, leaves or joins, a gate looks at its
queue. The gateway's part of each event is production code; no decision is modelled. The network of requests and the
gateway's own CPU time are left out.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import inf
from random import Random
from typing import TypeAlias

from gateway.commands.replay.gate import Gate
from gateway.commands.replay.legs import Legs
from gateway.commands.replay.policies import Policy
from gateway.commands.replay.scene import Scene, Schedule
from gateway.commands.replay.seat import Seat
from gateway.commands.replay.workload import Result, TraceCall, Workload
from gateway.commands.replay.world import Next, World, as_event, token_ids
from gateway.errors import ConfigError
from gateway.framework import Role
from gateway.sharing.shared_loads import TICK
from simulator.virtual.engine import Engine
from simulator.virtual.pool import PoolEvent

MakeGate: TypeAlias = Callable[[World, Legs], Gate]
"""Makes the gate of one run. What it wants to do at a time of its own it puts into the agenda as ``Next.GATE``, with a
function of the time."""


def replay(
    workload: Workload,
    policy: Policy,
    scene: Scene,
    *,
    seed: int,
    progress: Callable[[float], None] | None = None,
    gate: MakeGate | None = None,
) -> Result:
    """Serve ``workload`` on the engines of ``scene`` with the plugins of ``policy``. The same ``seed`` gives the same
    result.

    ``progress``: called with the share that is done, 0..1. ``gate``: makes that where calls wait before they are
    placed; None: each is placed as it comes. Raises ConfigError for a policy or a call that cannot be replayed.
    """
    began = time.process_time()
    world = World(policy, scene, block_size=workload.block_size, seed=seed)
    run = Run(world, workload, scene.event_delay, progress, scene.schedule)
    run.legs.gate = None if gate is None else gate(world, run.legs)
    if scene.scrape is not None:
        run.scrape(scene.scrape, Random(f"scrapes {seed}"))
    run.come(workload.start())
    run.go()
    legs = run.legs
    if legs.lost and not legs.records:
        raise ConfigError(f"all {len(legs.lost)} calls were lost: no engine was there to answer them")
    return Result(
        policy=policy.name if scene.deciders == 1 else f"{policy.name}, {scene.deciders} deciders",
        seed=seed,
        records=legs.records,
        lost=legs.lost,
        refused=legs.refused,
        retried=legs.retried,
        scheduled=bool(scene.schedule),
        apart=any(role is not Role.BOTH for role in scene.roles),
        busy=[seat.busy for seat in world.seats],
        seconds=world.clock.now - min((record.call.at for record in legs.records), default=world.clock.now),
        cpu_seconds=time.process_time() - began,
    )


@dataclass(slots=True)
class Run:
    """The event loop and its handlers. ``schedule``: when engines fail, leave and join."""

    world: World
    workload: Workload
    event_delay: float
    progress: Callable[[float], None] | None
    schedule: Schedule = ()
    legs: Legs = field(init=False)
    _scrape: float = 0.0
    _left: int = 0

    def __post_init__(self) -> None:
        self.legs = Legs(self.world, self._ended, scheduled=bool(self.schedule))
        for change in self.schedule:
            self.world.agenda.push(change.at, Next.CHANGE, change)

        if len(self.world.deciders) > 1:
            self._tick(0.0)

    def come(self, calls: Iterable[TraceCall]) -> None:
        for call in calls:
            self._left += 1
            self.world.agenda.push(call.at, Next.CALL, call)

    def scrape(self, interval: float, chance: Random) -> None:
        """Scrape each engine now, and then every ``interval`` seconds from a random moment of its own."""
        self._scrape = interval
        for seat in self.world.seats:
            seat.scraped(0.0)
            self.world.agenda.push(interval * chance.random(), Next.SCRAPE, seat)

    def go(self) -> None:
        """Run until every call is answered."""
        clock, gate = self.world.clock, self.legs.gate
        while self._left:
            at, what, of = self.world.agenda.pop()
            clock.now = at
            if what is Next.CALL:
                self.legs.place(of, self.token_ids(of))
            elif what is Next.STEP:
                self._step(of, at)
            elif what is Next.EVENTS:
                self._hear(*of)
            elif what is Next.ROWS:
                self.world.exchange.tell(of)
            elif what is Next.FETCHED:
                self.legs.fetched(of, at)
            elif what is Next.CHANGE:
                self.legs.change(of, at)
                if self._scrape:
                    self.world.seats[of.endpoint].scraped(at)
                if gate is not None:
                    gate.look_at(self.world.seats[of.endpoint])
                    gate.turned()
            elif what is Next.GATE or what is Next.TICK:
                of(at)
            else:
                of.scraped(at)
                self.world.agenda.push(at + self._scrape, Next.SCRAPE, of)
                if gate is not None:
                    gate.look_at(of)
                    gate.turned()
            self.world.exchange_rows()

    def token_ids(self, call: TraceCall) -> array[int]:
        """The token ids of the call's prompt. Raises ConfigError if it has too few blocks."""
        size = self.workload.block_size
        ids = token_ids(call.blocks[: -(-call.input_tokens // size)], size)[: call.input_tokens]
        if len(ids) != call.input_tokens:
            raise ConfigError(f"a call of {call.input_tokens} tokens has {len(call.blocks)} blocks of {size}")
        return ids

    def _hear(self, seat: Seat, engine: Engine, events: Iterable[PoolEvent]) -> None:
        if engine is not seat.engine:
            return  # an event of a process that has died
        self.world.hear(seat.place.slot, [as_event(event, self.workload.block_size) for event in events])

    def _tick(self, now: float) -> None:
        """Among several gateways: each tells how its answers have grown."""
        for seat in self.world.seats:
            seat.progress(now)
        self.world.exchange.grown()
        self.world.agenda.push(now + TICK, Next.TICK, self._tick)

    def _step(self, seat: Seat, now: float) -> None:
        """An engine has finished its step, unless the step was interrupted and now ends at another time."""
        if seat.engine.due != now:
            return
        gate = self.legs.gate
        first, ended = seat.engine.advance()
        if seat.engine.due < inf:
            self.world.agenda.push(seat.engine.due, Next.STEP, seat)
        for at, events in seat.engine.news():
            self.world.agenda.push(at + self.event_delay, Next.EVENTS, (seat, seat.engine, events))
        for job in first:
            if not job.keeps:
                flight = seat.flights[job]
                seat.begun(flight)
                if gate is not None:
                    gate.first_token(flight)
        for job in ended:
            if not job.keeps:
                self.legs.settle(seat.flights.pop(job), now)
            elif job in seat.flights:
                self.legs.prefilled(seat.flights[job], now)
            else:  # its call has ended
                self.legs.free(seat, job)
        if (first or ended) and gate is not None:
            gate.turned()

    def _ended(self, call: TraceCall) -> None:
        """A call was answered or lost: its client goes on."""
        self._left -= 1
        self.come(self.workload.answered(call, self.world.clock.now))
        if self.progress is not None:
            legs = self.legs
            done = len(legs.records) + len(legs.lost) + len(legs.refused)
            self.progress(done / (done + self._left))
