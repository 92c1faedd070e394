"""One run: a workload through a gateway's own code in virtual time.

A queue of what happens next, in order of time: calls that come, engines that finish a step, their KV events on the way
to the gateway, scrapes. The gateway's part of each is the code that serves: nothing of a decision is modelled. What is
left out is the network, the gateway's own time, and whatever goes wrong.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterable
from enum import IntEnum
from heapq import heappop, heappush
from math import inf
from random import Random
from typing import Any

from gateway.errors import ConfigError
from gateway.fleet.booking import Booking, learn_output
from gateway.framework import Kind, Outcome, Request
from gateway.replay.policies import Wiring
from gateway.replay.result import Record, Result
from gateway.replay.scene import Scene
from gateway.replay.tokens import as_event, token_ids
from gateway.replay.workload import Call, Workload
from gateway.replay.world import Flight, Seat, World
from simulator.virtual.job import Job
from simulator.virtual.pool import PoolEvent


class Next(IntEnum):
    """What happens; of what happens at once, the first comes first."""

    EVENTS = 0
    CALL = 1
    STEP = 2
    SCRAPE = 3


def replay(
    workload: Workload,
    wiring: Wiring,
    scene: Scene,
    *,
    seed: int,
    progress: Callable[[float], None] | None = None,
) -> Result:
    """Serve ``workload`` on the engines of ``scene`` with the plugins of ``wiring``. The same for the same ``seed``.

    ``progress``: told the share that is done, 0..1. Raises ConfigError for a policy or a call that cannot be replayed.
    """
    began = time.process_time()
    world = World(wiring, scene, block_size=workload.block_size, seed=seed)
    run = Run(world, workload, scene.event_delay, progress)
    if scene.scrape is not None:
        run.scrape(scene.scrape, Random(f"scrapes {seed}"))
    run.come(workload.start())
    run.go()
    return Result(
        policy=wiring.name,
        seed=seed,
        records=run.records,
        busy=[seat.engine.busy for seat in world.seats],
        seconds=world.clock.now - min((record.call.at for record in run.records), default=world.clock.now),
        cpu_seconds=time.process_time() - began,
    )


class Run:
    """The queue, and what is done with each thing in it."""

    def __init__(
        self, world: World, workload: Workload, event_delay: float, progress: Callable[[float], None] | None
    ) -> None:
        self.records: list[Record] = []
        self._world = world
        self._workload = workload
        self._event_delay = event_delay
        self._progress = progress
        self._scrape = 0.0
        self._queue: list[tuple[float, Next, int, Any]] = []
        self._pushed = 0
        self._left = 0

    def come(self, calls: Iterable[Call]) -> None:
        for call in calls:
            self._left += 1
            self._push(call.at, Next.CALL, call)

    def scrape(self, interval: float, chance: Random) -> None:
        """Scrape each engine now, and every ``interval`` seconds from some moment of its own on."""
        self._scrape = interval
        for seat in self._world.seats:
            seat.scraped(0.0)
            self._push(interval * chance.random(), Next.SCRAPE, seat)

    def go(self) -> None:
        """Until every call is answered."""
        clock = self._world.clock
        while self._left:
            at, what, _, of = heappop(self._queue)
            clock.now = at
            if what is Next.CALL:
                self._place(of)
            elif what is Next.STEP:
                self._step(of, at)
            elif what is Next.EVENTS:
                self._hear(*of)
            else:
                of.scraped(at)
                self._push(at + self._scrape, Next.SCRAPE, of)

    def hear_out(self) -> None:
        """Apply the events that are still on their way."""
        for _, what, _, of in sorted(self._queue):
            if what is Next.EVENTS:
                self._hear(*of)

    def token_ids(self, call: Call) -> array[int]:
        """Of the prompt. Raises ConfigError if it has too few blocks."""
        size = self._workload.block_size
        ids = token_ids(call.blocks[: -(-call.input_tokens // size)], size)[: call.input_tokens]
        if len(ids) != call.input_tokens:
            raise ConfigError(f"a call of {call.input_tokens} tokens has {len(call.blocks)} blocks of {size}")
        return ids

    def _push(self, at: float, what: Next, of: Any) -> None:
        self._pushed += 1
        heappush(self._queue, (at, what, self._pushed, of))

    def _hear(self, seat: Seat, events: Iterable[PoolEvent]) -> None:
        self._world.hear(seat.place.slot, [as_event(event, self._workload.block_size) for event in events])

    def _place(self, call: Call) -> None:
        """Match, schedule, reserve, send: as the proxy's director and exchange do."""
        world, model = self._world, self._world.model
        now = world.clock.now
        for seat in world.seats:
            seat.progress(now)
        ids = self.token_ids(call)
        keys = world.index.keys(ids, len(ids), True, None, None)
        request = Request(
            id=str(self._pushed),
            model=model,
            kind=Kind.CHAT,
            arrived=now,
            stream=True,
            expected_output=model.expected_output,
            session=call.session,
            priority=call.priority,
            slo=world.slo(call.traffic),
            token_ids=ids,
            prompt_tokens=len(ids),
            exact=True,
            matches=world.index.match(keys, len(ids), world.endpoints),
        )
        plan = world.scheduler.schedule(request, world.endpoints)
        if plan.prefill is not None:
            raise ConfigError("a replay has no hand-over of KV: choose a handler that plans one leg")
        booking = Booking.make(request, plan.decode, world.fleet, now)
        booking.computes(now, told=True)
        use = world.index.placed(keys, plan.decode)
        world.scheduler.placed(request, plan)
        seat = world.by_slot[plan.decode.slot]
        job = Job(call.blocks, call.input_tokens, call.output_tokens)
        try:
            seat.engine.submit(job, now)
        except ValueError as error:
            raise ConfigError(f"the call at {call.at:g} s: {error}") from None
        seat.flights[job] = Flight(call, job, request, plan, booking, use)
        self._push(seat.engine.due, Next.STEP, seat)

    def _step(self, seat: Seat, now: float) -> None:
        """An engine is where it said it would be; unless something came in between, and it is elsewhere."""
        if seat.engine.due != now:
            return
        first, ended = seat.engine.advance()
        if seat.engine.due < inf:
            self._push(seat.engine.due, Next.STEP, seat)
        for at, events in seat.engine.news():
            self._push(at + self._event_delay, Next.EVENTS, (seat, events))
        for job in first:
            seat.begun(seat.flights[job])
        for job in ended:
            self._settle(seat.flights.pop(job), now)

    def _settle(self, flight: Flight, now: float) -> None:
        """Learn, give back, tell: as the proxy's exchange does for a stream whose usage is told."""
        world, call, job, booking = self._world, flight.call, flight.job, flight.booking
        assert job.first_at is not None
        tokens = call.output_tokens
        booking.learn_prefill(job.first_at - booking.at)
        if tokens > 2:
            booking.learn_steps(now, tokens - 1, now - job.first_at)
        booking.cost.ended()
        learn_output(world.model, tokens)
        flight.use.reported(booking.expected_hit, job.hit_tokens)
        booking.reservation.settle()
        flight.use.end()
        ttft, duration = job.first_at - flight.request.arrived, now - flight.request.arrived
        outcome = Outcome("ok", 200, duration, ttft, call.input_tokens, job.hit_tokens, tokens)
        world.scheduler.settled(flight.request, flight.plan, outcome)
        self.records.append(
            Record(
                call=call,
                endpoint=world.endpoints.index(booking.endpoint),
                ttft=ttft,
                finished=duration,
                hit_tokens=job.hit_tokens,
                expected_hit=booking.expected_hit,
            )
        )
        self._left -= 1
        self.come(self._workload.answered(call, now))
        if self._progress is not None:
            self._progress(len(self.records) / (len(self.records) + self._left))
