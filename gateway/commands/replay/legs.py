"""A call's way through the gateway and the engines: it is placed, sent, and answered or lost, as by the proxy's
director and hand-over. Everything that is not about sockets is production code."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from math import inf
from typing import NamedTuple

from gateway.commands.replay.gate import Gate
from gateway.commands.replay.scene import Change, What
from gateway.commands.replay.seat import Flight, Prefill, Seat
from gateway.commands.replay.workload import Record, TraceCall
from gateway.commands.replay.world import Next, World
from gateway.core.prompt import Prompt
from gateway.errors import ConfigError, NoEndpoint
from gateway.fleet.load.booking import BOOKING_STEP
from gateway.framework import Kind, Outcome, Plan, Request
from gateway.framework.request import DECODE, PREFILL
from gateway.placement.placing import Answered, book, decide, learn
from simulator.virtual.engine import Engine
from simulator.virtual.job import Job


class Fetch(NamedTuple):
    """KV that moves to ``seat``, whose process is ``engine``: ``tokens`` tokens, since ``began``."""

    flight: Flight
    prefill: Prefill
    seat: Seat
    engine: Engine
    tokens: int
    began: float


class Legs:
    """``records``: of the answered calls, in the order in which they ended. ``lost``: the calls that were not answered.
    ``retried``: number of legs that were sent again. ``ended``: called with each call that has ended either way.
    ``scheduled``: engines come and go. ``gate``: where calls wait before they are placed; None: nowhere. ``refused``:
    the calls that it refused, each with a short word for why."""

    def __init__(self, world: World, ended: Callable[[TraceCall], None], *, scheduled: bool) -> None:
        self.records: list[Record] = []
        self.lost: list[TraceCall] = []
        self.refused: list[tuple[TraceCall, str]] = []
        self.retried = 0
        self.gate: Gate | None = None
        self._world = world
        self._agenda = world.agenda
        self._ended = ended
        self.scheduled = scheduled
        self._gone: set[int] = set()

    def place(self, call: TraceCall, ids: array[int]) -> None:
        """A call has arrived. ``ids``: the token ids of its prompt."""
        decider = self._world.next_decider()
        model = decider.model
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
            tenant=call.tenant,
            band=call.band,
        )
        flight = Flight(call, request, decider.index.keys(Prompt(ids, len(ids), True)), decider)
        if self.gate is None:
            self.send(flight)
        else:
            self.gate.arrive(flight)

    def refuse(self, flight: Flight, reason: str) -> None:
        """The gate refuses a call, which has not been sent."""
        self.refused.append((flight.call, reason))
        self._ended(flight.call)

    def send(self, flight: Flight) -> None:
        """Choose endpoints for the call, book it there, and send its first leg; or lose it, if there is none."""
        try:
            plan = self.decide(flight)
        except NoEndpoint as error:
            if not self.scheduled:
                raise ConfigError(f"the call at {flight.call.at:g} s: {error}") from error
            self._lose(flight)
            return
        self.commit(flight, plan)

    def decide(self, flight: Flight) -> Plan:
        """Match the call again and choose endpoints for it. Raises NoEndpoint."""
        decider, now = flight.decider, self._world.clock.now
        for seat in self._world.seats:
            seat.progress(now)
        among = decider.endpoints
        if self.scheduled:
            among = [one for one in among if not one.draining and one.slot not in flight.failed_on]
        return decide(flight, among, decider.index, decider.scheduler, fell_back=flight.fell_back)

    def commit(self, flight: Flight, plan: Plan) -> None:
        """Book the call on the plan's endpoints, and send its first leg."""
        world = self._world
        now = world.clock.now
        if plan.kinds not in ((DECODE,), (PREFILL, DECODE)):
            raise ConfigError(f"the handler planned the legs {', '.join(plan.kinds)}, which a replay cannot send")
        flight.placement, flight.due = book(flight, plan, flight.decider.index, now), 1 + BOOKING_STEP
        call, seat = flight.call, world.by_slot[plan.decode.slot]
        flight.job = Job(call.blocks, call.input_tokens, call.output_tokens)
        flight.sent = plan.prefill is None
        if plan.prefill is None:
            self._submit(seat, flight.job, flight)
        else:
            first = world.by_slot[plan.prefill.slot]
            job = Job(call.blocks, call.input_tokens, 1, keeps=True)
            flight.prefill = Prefill(first, job)
            self._submit(first, job, flight)
        seat.flights[flight.job] = flight
        flight.decider.scheduler.placed(flight.request, plan)

    def _submit(self, seat: Seat, job: Job, flight: Flight) -> None:
        try:
            seat.engine.submit(job, self._world.clock.now)
        except ValueError as error:
            raise ConfigError(f"the call at {flight.call.at:g} s: {error}") from None
        seat.flights[job] = flight
        self._agenda.push(seat.engine.due, Next.STEP, seat)

    def settle(self, flight: Flight, now: float) -> None:
        """Settle an answered call: learn from it, give back what is booked, and record it. It counts as a stream of one
        token an event whose engine reports usage."""
        decider, call, job, placement = flight.decider, flight.call, flight.job, flight.placement
        assert job.first_at is not None
        tokens = call.output_tokens
        later = tokens - 1 if tokens > 2 else 0
        learn(placement, Answered(now, 1, tokens, job.first_at, later, tokens))
        if not placement.split:  # with a hand-over the first token is the other engine's
            flight.reported = placement.decode.expected_hit, job.hit_tokens
            placement.decode.blocks.reported(placement.decode.expected_hit, job.hit_tokens)
        expected, found = flight.reported
        placement.end(ok=True)
        ttft, duration = job.first_at - flight.request.arrived, now - flight.request.arrived
        decider.scheduler.settled(
            flight.request, placement.plan, Outcome("ok", 200, duration, ttft, call.input_tokens, found, tokens)
        )
        self.records.append(
            Record(
                call=call,
                endpoint=decider.endpoints.index(placement.plan.decode),
                ttft=ttft,
                finished=duration,
                hit_tokens=found,
                expected_hit=expected,
                split=placement.split,
            )
        )
        if self.gate is not None:
            self.gate.settled(flight, answered=True)
        self._ended(flight.call)

    # prompts that are computed apart

    def prefilled(self, flight: Flight, now: float) -> None:
        """The first leg is answered: learn from it, give back what it booked, and send the second leg."""
        prefill, placement = flight.prefill, flight.placement
        assert prefill is not None
        prefill.done = True
        work = placement.ended(PREFILL, ok=True, seconds=now - placement.computes.at)
        assert work is not None
        flight.reported = work.expected_hit, prefill.job.hit_tokens
        work.blocks.reported(work.expected_hit, prefill.job.hit_tokens)
        work.blocks.end()
        seat = self._world.by_slot[placement.plan.decode.slot]

        def fetches(tokens: int, there: float) -> None:
            self._agenda.push(
                there, Next.FETCHED, Fetch(flight, prefill, seat, seat.engine, tokens, self._world.clock.now)
            )

        flight.job.links, flight.job.fetches = (prefill.seat.out, seat.into), fetches
        flight.sent = True
        self._submit(seat, flight.job, flight)

    def fetched(self, fetch: Fetch, now: float) -> None:
        """The KV has arrived: the engine that computed it may free it."""
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
        """The KV will not be fetched: give back what the prefill has booked and holds."""
        prefill, flight.prefill = flight.prefill, None
        if prefill is None:
            return
        if (work := flight.placement.ended(PREFILL, ok=False)) is not None:
            work.blocks.end()
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
            seat.drain()
            return
        lost = seat.fail()
        world.forget(seat)
        for flight in lost:
            if flight.placement.plan.decode.slot == seat.place.slot:
                self._broke(flight, now)
            else:
                self._falls_back(flight, now)

    def _broke(self, flight: Flight, now: float) -> None:
        """The decode engine died: try once more elsewhere, if the client has no part of the answer and no other engine
        died of this call. This follows the proxy's director and ``legs``."""
        self._drop_prefill(flight)
        flight.placement.end(ok=False)
        duration = now - flight.request.arrived
        flight.decider.scheduler.settled(
            flight.request,
            flight.placement.plan,
            Outcome("broken", 502, duration, None, flight.call.input_tokens, 0, None),
        )
        flight.failed_on.add(flight.placement.plan.decode.slot)
        flight.deaths += flight.sent
        if flight.job.first_at is not None or flight.deaths > 1:
            self._lose(flight)
        else:
            self.retried += 1
            self.send(flight)

    def _falls_back(self, flight: Flight, now: float) -> None:
        """The prefill engine died: the decode engine computes the prompt, as with the proxy's hand-over. KV that is
        already on its way still arrives."""
        prefill = flight.prefill
        assert prefill is not None
        fetching = flight.sent and not flight.job.links
        flight.deaths += not prefill.done
        self._drop_prefill(flight)
        if fetching:
            return
        self.retried += 1
        flight.fell_back = True
        flight.job.links = ()
        flight.placement.falls_back(now)
        if not flight.sent:
            flight.sent = True
            self._submit(self._world.by_slot[flight.placement.plan.decode.slot], flight.job, flight)

    def _lose(self, flight: Flight) -> None:
        if self.gate is not None:
            self.gate.settled(flight, answered=False)
        self.lost.append(flight.call)
        self._ended(flight.call)
