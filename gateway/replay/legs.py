"""A call's way through the gateway and the engines: placed, sent, answered or lost. As the proxy's director, hand-over
and exchange do it, with the code that serves wherever that is not about sockets."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import replace
from math import inf
from typing import NamedTuple

from gateway.errors import ConfigError, NoEndpoint
from gateway.fleet.booking import BOOKED, Booking, learn_output
from gateway.framework import Kind, Outcome, Request
from gateway.replay.agenda import Agenda, Next
from gateway.replay.result import Record
from gateway.replay.schedule import Change, What
from gateway.replay.seat import Flight, Prefill, Seat
from gateway.replay.workload import Call
from gateway.replay.world import World
from simulator.virtual.engine import Engine
from simulator.virtual.job import Job


class Fetch(NamedTuple):
    """KV on its way to ``seat``, whose process is ``engine``: so many ``tokens``, since ``began``."""

    flight: Flight
    prefill: Prefill
    seat: Seat
    engine: Engine
    tokens: int
    began: float


class Legs:
    """``records``: of the calls that were answered; ``lost``: those that were not. ``retried``: legs that were made
    again. ``ended``: told of each call that has ended either way. ``scheduled``: engines come and go."""

    def __init__(self, world: World, agenda: Agenda, ended: Callable[[Call], None], *, scheduled: bool) -> None:
        self.records: list[Record] = []
        self.lost: list[Call] = []
        self.retried = 0
        self._world = world
        self._agenda = agenda
        self._ended = ended
        self._scheduled = scheduled
        self._gone: set[int] = set()

    def place(self, call: Call, ids: array[int]) -> None:
        """A call has come; ``ids``: of its prompt's tokens."""
        model = self._world.model
        request = Request(
            id=str(self._agenda.pushed),
            model=model,
            kind=Kind.CHAT,
            arrived=self._world.clock.now,
            stream=True,
            expected_output=model.expected_output,
            session=call.session,
            priority=call.priority,
            slo=self._world.slo(call.traffic),
            token_ids=ids,
            prompt_tokens=len(ids),
            exact=True,
        )
        self._send(Flight(call, request, self._world.index.keys(ids, len(ids), True, None, None)))

    def _send(self, flight: Flight) -> None:
        """Match, schedule, reserve, send: as the proxy's director and exchange do."""
        world, request, keys = self._world, flight.request, flight.keys
        now = world.clock.now
        for seat in world.seats:
            seat.progress(now)
        among = world.endpoints
        if self._scheduled:
            among = [one for one in among if not one.draining and one.slot not in flight.failed_on]
        request.matches = world.index.match(keys, request.prompt_tokens, among)
        try:
            plan = world.scheduler.schedule(request, among)
        except NoEndpoint as error:
            if not self._scheduled:
                raise ConfigError(f"the call at {flight.call.at:g} s: {error}") from None
            self._lose(flight)
            return
        if plan.prefill is not None and flight.fell_back:
            plan = replace(plan, prefill=None, reason="fell-back")
        call, seat = flight.call, world.by_slot[plan.decode.slot]
        flight.plan, flight.due = plan, 1 + BOOKED
        flight.booking = Booking.make(request, plan.decode, world.fleet, now)
        flight.use = world.index.placed(keys, plan.decode)
        flight.job = Job(call.blocks, call.input_tokens, call.output_tokens)
        flight.split, flight.sent = plan.prefill is not None, plan.prefill is None
        if plan.prefill is None:
            flight.booking.computes(now, told=True)
            self._submit(seat, flight.job, flight)
        else:
            first = world.by_slot[plan.prefill.slot]
            job = Job(call.blocks, call.input_tokens, 1, keeps=True)
            flight.prefill = Prefill(
                first,
                job,
                Booking.make(request, plan.prefill, world.fleet, now),
                world.index.placed(keys, plan.prefill),
            )
            flight.prefill.booking.computes(now, told=True)
            self._submit(first, job, flight)
        seat.flights[flight.job] = flight
        world.scheduler.placed(request, plan)

    def _submit(self, seat: Seat, job: Job, flight: Flight) -> None:
        try:
            seat.engine.submit(job, self._world.clock.now)
        except ValueError as error:
            raise ConfigError(f"the call at {flight.call.at:g} s: {error}") from None
        seat.flights[job] = flight
        self._agenda.push(seat.engine.due, Next.STEP, seat)

    def settle(self, flight: Flight, now: float) -> None:
        """Learn, give back, tell: as the proxy's exchange does for a stream whose usage is told."""
        world, call, job, booking = self._world, flight.call, flight.job, flight.booking
        assert job.first_at is not None
        tokens = call.output_tokens
        if not flight.split:
            booking.learn_prefill(job.first_at - booking.at)
            flight.reported = booking.expected_hit, job.hit_tokens
        if tokens > 2:
            booking.learn_steps(now, tokens - 1, now - job.first_at)
        booking.cost.ended()
        learn_output(world.model, tokens)
        expected, found = flight.reported
        if not flight.split:  # else it is the other engine's figure
            flight.use.reported(expected, found)
        booking.reservation.settle()
        flight.use.end()
        ttft, duration = job.first_at - flight.request.arrived, now - flight.request.arrived
        world.scheduler.settled(
            flight.request, flight.plan, Outcome("ok", 200, duration, ttft, call.input_tokens, found, tokens)
        )
        self.records.append(
            Record(
                call=call,
                endpoint=world.endpoints.index(booking.endpoint),
                ttft=ttft,
                finished=duration,
                hit_tokens=found,
                expected_hit=expected,
                split=flight.split,
            )
        )
        self._ended(flight.call)

    # a prompt that is computed apart

    def prefilled(self, flight: Flight, now: float) -> None:
        """Its first leg is answered: learn and give back, as the proxy's exchange does, and send the second one."""
        prefill = flight.prefill
        assert prefill is not None
        booking, use, prefill.done = prefill.booking, prefill.use, True
        booking.reservation.settle()
        use.computed()
        booking.learn_prefill(now - booking.at)
        booking.cost.ended()
        flight.reported = booking.expected_hit, prefill.job.hit_tokens
        use.reported(*flight.reported)
        use.end()
        seat = self._world.by_slot[flight.plan.decode.slot]

        def fetches(tokens: int, there: float) -> None:
            self._agenda.push(
                there, Next.FETCHED, Fetch(flight, prefill, seat, seat.engine, tokens, self._world.clock.now)
            )

        flight.job.links, flight.job.fetches = (prefill.seat.out, seat.into), fetches
        flight.sent = True
        self._submit(seat, flight.job, flight)

    def fetched(self, fetch: Fetch, now: float) -> None:
        """KV is there: who computed it may forget it."""
        flight, prefill, seat, engine, tokens, began = fetch
        if seat.engine is engine:
            seat.fetched(tokens, now - began)
        if flight.prefill is prefill:
            flight.prefill = None
            del prefill.seat.flights[prefill.job]
            self.free(prefill.seat, prefill.job)

    def free(self, seat: Seat, job: Job) -> None:
        seat.engine.free(job, self._world.clock.now)
        if seat.engine.due < inf:
            self._agenda.push(seat.engine.due, Next.STEP, seat)

    def _drop_prefill(self, flight: Flight) -> None:
        """Nobody will fetch it: give back what it has, as far as it has something."""
        prefill, flight.prefill = flight.prefill, None
        if prefill is None:
            return
        if not prefill.done:
            prefill.booking.reservation.settle()
            prefill.use.end()
        if prefill.seat.flights.pop(prefill.job, None) is not None and prefill.done:
            self.free(prefill.seat, prefill.job)

    # engines that come and go

    def change(self, change: Change, now: float) -> None:
        world = self._world
        seat = world.seats[change.endpoint]
        if change.what is What.JOIN:
            seat.join(now, back=change.endpoint in self._gone)
            return
        self._gone.add(change.endpoint)
        if change.what is What.LEAVE:
            seat.place.draining = True
            return
        lost = seat.fail()
        world.forget(seat)
        for flight in lost:
            if flight.plan.decode is seat.place:
                self._broke(flight, now)
            else:
                self._falls_back(flight, now)

    def _broke(self, flight: Flight, now: float) -> None:
        """The engine of its answer died: once more elsewhere, if its client has nothing of the answer yet, and no other
        engine died of it before; as the proxy's director and ``legs`` do."""
        booking = flight.booking
        booking.reservation.settle()
        flight.use.end()
        self._drop_prefill(flight)
        duration = now - flight.request.arrived
        self._world.scheduler.settled(
            flight.request, flight.plan, Outcome("broken", 502, duration, None, flight.call.input_tokens, 0, None)
        )
        flight.failed_on.add(booking.endpoint.slot)
        flight.deaths += flight.sent
        if flight.job.first_at is not None or flight.deaths > 1:
            self._lose(flight)
        else:
            self.retried += 1
            self._send(flight)

    def _falls_back(self, flight: Flight, now: float) -> None:
        """The engine that computed its prompt died: the one of its answer does that, as the proxy's hand-over has it.
        KV that is on its way already arrives."""
        prefill = flight.prefill
        assert prefill is not None
        fetching = flight.sent and not flight.job.links
        flight.deaths += not prefill.done
        self._drop_prefill(flight)
        if fetching:
            return
        self.retried += 1
        flight.fell_back, flight.split = True, False
        flight.job.links = ()
        flight.booking.computes(now, told=True)
        if not flight.sent:
            flight.sent = True
            self._submit(self._world.by_slot[flight.plan.decode.slot], flight.job, flight)

    def _lose(self, flight: Flight) -> None:
        self.lost.append(flight.call)
        self._ended(flight.call)
