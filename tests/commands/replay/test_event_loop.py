"""Covers: gateway/commands/replay/event_loop.py, gateway/commands/replay/legs.py, gateway/commands/replay/seat.py,
gateway/commands/replay/scene.py, gateway/commands/replay/world.py, gateway/commands/replay/world.py.

A replay's gateway: what it knows when it decides, what it gives back, and that a run can be repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random
from statistics import fmean
from typing import Any

import pytest

from gateway.commands.replay.event_loop import Run, replay
from gateway.commands.replay.fleet import Kind
from gateway.commands.replay.groups import Groups, Shape
from gateway.commands.replay.objectives import objectives
from gateway.commands.replay.policies import MODELS, POLICIES, Policy, load_policy
from gateway.commands.replay.scene import Scene
from gateway.commands.replay.workload import TraceCall
from gateway.commands.replay.world import Next, World, costs
from gateway.config.load import loads
from gateway.core.prompt import Prompt
from gateway.errors import ConfigError
from gateway.fleet.load.booking import BOOKING_STEP
from gateway.framework import Endpoint, Outcome, Plan, Request
from gateway.framework.request import Slo
from gateway.scheduling.profile import Profile
from gateway.scheduling.scheduler import Scheduler
from gateway.scheduling.single import Single
from simulator.virtual.machine import MACHINES, Machine
from simulator.virtual.noise import Noise

MACHINE = replace(MACHINES["70b-tp4"], kv_tokens=40_000)


@dataclass
class Calls:
    """A workload of these; ``after``: what follows a call, by its number, so many seconds after its answer."""

    calls: Sequence[TraceCall]
    after: dict[int, tuple[float, TraceCall]] = field(default_factory=dict)
    name: str = "calls"
    block_size: int = 100

    def start(self) -> Sequence[TraceCall]:
        return self.calls

    def answered(self, call: TraceCall, at: float) -> Sequence[TraceCall]:
        follow = self.after.get(list(self.calls).index(call)) if call in self.calls else None
        return [] if follow is None else [replace(follow[1], at=at + follow[0])]


def chats(count: int, rate: float, seed: int = 0) -> list[TraceCall]:
    """Of 50 beginnings of 20 blocks, each followed by blocks of its own."""
    random, at, calls = Random(seed), 0.0, []
    for number in range(count):
        at += random.expovariate(rate)
        begin = random.randrange(50) * 1000
        own = random.randrange(1, 12)
        blocks = (*range(begin, begin + 20), *range(10**6 + number * 100, 10**6 + number * 100 + own))
        calls.append(TraceCall(at, 2000 + own * 100 - random.randrange(100), random.randrange(1, 300), blocks))
    return calls


def scene(endpoints: int, machine: Machine = MACHINE, **more: Any) -> Scene:
    return Scene(fleet=(Kind(machine, endpoints),), **more)


def world_of(workload: Calls, on: Scene | None = None) -> World:
    return World(load_policy("default"), on or scene(2), block_size=workload.block_size, seed=1)


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_every_policy_answers_every_call(name: str) -> None:
    calls = chats(120, 4.0)
    result = replay(Calls(calls), load_policy(name), scene(3), seed=1)
    assert {id(record.call) for record in result.records} == {id(call) for call in calls}
    for record in result.records:
        assert 0 < record.ttft <= record.finished
        assert 0 <= record.hit_tokens < record.call.input_tokens
    assert result.seconds == pytest.approx(
        max(record.call.at + record.finished for record in result.records) - calls[0].at
    )
    assert 0 < max(result.busy) <= result.seconds + 1e-6
    assert result.cpu_seconds > 0


def test_a_seed_says_all() -> None:
    def run(seed: int) -> list[tuple[int, float, float, int]]:
        result = replay(Calls(chats(150, 4.0)), load_policy("random"), scene(4), seed=seed)
        return [(record.endpoint, record.ttft, record.finished, record.expected_hit) for record in result.records]

    assert run(3) == run(3) != run(4)


def test_plugins_draw_otherwise_than_the_workload_and_the_scrapes(monkeypatch) -> None:
    world = World(load_policy("random"), scene(2), block_size=200, seed=3)
    drawn: list[Random] = []
    monkeypatch.setattr(Run, "scrape", lambda run, interval, chance: drawn.append(chance))
    replay(Groups(Shape(groups=1, users=1, rounds=1), seed=3), load_policy("default"), scene(2), seed=3)
    drawn += [world.deciders[0].scheduler.profiles["default"].picker[1]._random, Random(3)]
    assert len({chance.random() for chance in drawn}) == 3


@pytest.mark.parametrize("machine", [MACHINE, replace(MACHINE, host_tokens=60_000, fetch_token=1.6e-6)])
def test_what_the_index_expects_is_what_the_engine_finds(machine: Machine) -> None:
    """All but what is evicted between the decision and the first step, or within the delay of the events."""
    result = replay(Calls(chats(400, 1.0)), load_policy("round-robin"), scene(2, machine), seed=1)
    wrong = [record for record in result.records if record.hit_tokens != record.expected_hit]
    assert sum(record.hit_tokens > 0 for record in result.records) > 100
    assert len(wrong) < 0.02 * len(result.records)


def test_in_the_end_nothing_is_booked_and_the_index_is_true() -> None:
    workload = Calls(chats(300, 6.0))
    world = world_of(workload)
    run = Run(world, workload, 0.05, None)
    run.scrape(1.0, Random(1))
    run.come(workload.start())
    run.go()
    while world.agenda._queue:  # KV events that were on their way when the last call ended
        _, what, of = world.agenda.pop()
        if what is Next.EVENTS:
            run._hear(*of)
    for seat in world.seats:
        load = seat.place.load
        assert (load.requests, load.prefill_tokens, load.kv_tokens) == (0, 0, 0)
        assert (load.foreign_requests, load.foreign_kv_tokens) == (0, 0)
        assert seat.flights == {}
        assert seat.engine.kv_usage == 0
    assert world.model.expected_output == pytest.approx(150, abs=80)
    world.clock.now += 100  # predictions have lapsed
    for call in workload.calls:
        ids = run.token_ids(call)
        matches = world.index.match(world.index.keys(Prompt(ids, len(ids), True)), len(ids), world.endpoints)
        for seat in world.seats:
            found = len(seat.engine.pool.find(call.blocks, (call.input_tokens - 1) // 100))
            assert matches[seat.place.slot].expected_hit == found * 100


class Watching:
    """A picker that compares what it is shown with what is."""

    def __init__(self, world: World, chance: Random) -> None:
        self.world, self.chance = world, chance
        self.placed: list[Request] = []
        self.settled: list[tuple[Request, Outcome]] = []
        self.seen = self.behind = self.decoding = 0

    def pick(self, request: Request, endpoints: Sequence[Endpoint], scores: Sequence[float], /) -> Sequence[Endpoint]:
        now = self.world.clock.now
        for seat in self.world.seats:
            load, engine = seat.place.load, seat.engine
            jobs = [*engine.running, *engine.waiting]
            assert load.requests == len(jobs)
            decoded = engine.decoded(now)
            held = sum(
                job.input_tokens + (job.generated if job.offset is None else job.offset + decoded) for job in jobs
            )
            decoding = sum(job.offset is not None for job in jobs)
            assert 0 <= held - load.kv_tokens <= decoding * (BOOKING_STEP - 1)
            self.behind += held - load.kv_tokens
            self.decoding += decoding
            waiting = [seat.flights[job].placement.decode for job in jobs if job.first_at is None]
            assert load.prefill_tokens == sum(booking.new_tokens for booking in waiting)
            self.seen += load.requests
        return [self.chance.choice(endpoints)]

    def on_placed(self, request: Request, plan: Plan) -> None:
        self.placed.append(request)

    def on_settled(self, request: Request, plan: Plan, outcome: Outcome) -> None:
        self.settled.append((request, outcome))


def test_each_decision_sees_the_load_as_it_is_and_plugins_are_told() -> None:
    workload = Calls(chats(200, 5.0))
    world = world_of(workload)
    # Room for all: a request that has lost its blocks has not generated less, as far as a gateway knows.
    for seat in world.seats:
        seat.engine.__init__(replace(MACHINE, kv_tokens=10**6), 100)  # type: ignore[misc]
    watching = Watching(world, Random(1))
    profile = Profile("default", (), (), ("watch", watching))
    handler = Single(Single.Parameters(), None)  # type: ignore[arg-type]
    world.deciders[0].scheduler = Scheduler({"default": profile}, {"default": handler}, None)  # type: ignore[arg-type]
    run = Run(world, workload, 0.05, None)
    run.come(workload.start())
    run.go()
    assert watching.seen > 200
    assert watching.behind / watching.decoding == pytest.approx((BOOKING_STEP - 1) / 2, rel=0.1)
    assert len(watching.placed) == len(watching.settled) == 200
    for request, outcome in watching.settled:
        assert (outcome.outcome, outcome.prompt_tokens) == ("ok", request.prompt_tokens)


def test_a_closed_loop_goes_on_after_its_answers() -> None:
    shape = Shape(groups=2, users=2, rounds=2, turns=3, shared=600, own=400, output=50, think=5.0)
    result = replay(Groups(shape, seed=1), load_policy("default"), scene(2), seed=1)
    assert len(result.records) == shape.requests
    later = [record for record in result.records if record.call.input_tokens > 1000]
    assert len(later) == 16
    # A next turn finds what the last one said, but for the last token, whose block is not full.
    assert fmean(record.hit_tokens / record.call.input_tokens for record in later) > 0.5


def test_wrong_costs_stay_wrong() -> None:
    def scales(cost_scale: float) -> tuple[float, float]:
        workload = Calls(chats(100, 4.0))
        world = world_of(workload, scene(2, cost_scale=cost_scale))
        run = Run(world, workload, 0.05, None)
        run.come(workload.start())
        run.go()
        cost = world.deciders[0].fleet.cost(world.endpoints[0])
        return cost.scalars.prefill_seconds(1000) / (1000 * MACHINE.prefill_token), cost.prefill_scale

    assert scales(2.0) == (pytest.approx(2.0, rel=0.05), 1.0)
    fitted, scale = scales(1.0)
    assert fitted == pytest.approx(1.0, rel=0.3)
    assert scale != 1.0


def test_prefill_and_decode_can_be_wrong_by_themselves() -> None:
    world = world_of(Calls([]), scene(2, cost_scale=2.0, step_scale=0.5))
    cost = world.deciders[0].fleet.cost(world.endpoints[0])
    right = costs(MACHINE, scene(1))
    assert cost.scalars.prefill_seconds(1000, 500) == pytest.approx(
        2 * 1000 * (right.prefill_token + right.prefill_quadratic * 1000)
    )
    assert cost.scalars.step_seconds(3, 5000) == pytest.approx(
        (right.step + 3 * right.step_request + 5000 * right.kv_token) / 2
    )
    assert [
        costs(MACHINE, scene(1, cost_scale=cost, step_scale=step)).fit
        for cost, step in ((1.0, None), (2.0, None), (1.0, 2.0))
    ] == [True, False, False]


SLOW = replace(
    MACHINE,
    name="slow",
    prefill_token=4 * MACHINE.prefill_token,
    prefill_quadratic=4 * MACHINE.prefill_quadratic,
    step=4 * MACHINE.step,
)


@pytest.mark.parametrize("believed", [None, MACHINE])
def test_each_endpoint_has_its_own_machine_and_is_believed_to_be_it_or_another(believed: Machine | None) -> None:
    fleet = (Kind(MACHINE, 2), Kind(SLOW))
    world = world_of(Calls([]), Scene(fleet=fleet, believed=believed))
    assert [seat.engine.machine for seat in world.seats] == [MACHINE, MACHINE, SLOW]
    expected = [costs(machine, scene(1)) for machine in (MACHINE, MACHINE, believed or SLOW)]
    for endpoint, cost in zip(world.endpoints, expected, strict=True):
        assert endpoint.cost.scalars[:3] == (cost.prefill_token, cost.prefill_quadratic, cost.step)


def test_what_is_declared_of_a_machine_is_all_that_it_is() -> None:
    host = replace(MACHINE, host_tokens=10**6, fetch_token=2e-6, max_batched_tokens=2048)
    cost = world_of(Calls([]), scene(1, host)).endpoints[0].cost.scalars
    assert (cost.step_tokens, cost.cpu_fetch, cost.storage_fetch) == (2048, 2e-6, 0)


def test_the_fit_finds_hardware_that_nobody_has_declared() -> None:
    workload = Calls(chats(900, 4.0))
    world = world_of(workload, Scene(fleet=(Kind(MACHINE, 2), Kind(SLOW, 2)), believed=MACHINE))
    run = Run(world, workload, 0.05, None)
    run.come(workload.start())
    run.go()
    scales = [world.deciders[0].fleet.cost(endpoint).prefill_scale for endpoint in world.endpoints]
    assert max(scales[:2]) < 0.7 * min(scales[2:])


def test_requests_ask_for_their_objectives_and_have_their_priority() -> None:
    calls = [replace(call, traffic=name, priority=rank) for rank, (call, name) in enumerate(
        zip(chats(3, 1.0), ("", "batch", "chat"), strict=True)
    )]  # fmt: skip
    text = "models: [{name: m, slo: {tpot_ms: 40}, endpoints: [{url: 'http://h:1'}]}]"
    for policy, tpot in ((load_policy("default"), None), (Policy("mine", loads(text, {}, "mine")), 0.04)):
        world = World(policy, scene(2, objectives=objectives(["ttft=2s", "batch:tpot=250ms"])), block_size=100, seed=1)
        seen: list[Request] = []
        schedule = world.deciders[0].scheduler.schedule
        world.deciders[0].scheduler.schedule = lambda request, among, trace=None, s=schedule, seen=seen: (  # type: ignore[method-assign]
            seen.append(request) or s(request, among, trace)  # type: ignore[func-returns-value]
        )
        run = Run(world, Calls(calls), 0.05, None)
        run.come(calls)
        run.go()
        assert [request.slo for request in seen] == [Slo(2.0, tpot), Slo(None, 0.25), Slo(2.0, tpot)]
        assert [request.priority for request in seen] == [0, 1, 2]
    assert world_of(Calls([])).slo("") is None


NOISE = Noise(step=0.2, prefill=0.3, stalls=0.01, stall=10)


def test_noise_is_of_the_seed_and_of_each_engine() -> None:
    def run(seed: int, noise: Noise) -> list[float]:
        result = replay(Calls(chats(100, 4.0)), load_policy("round-robin"), scene(2, noise=noise), seed=seed)
        return [record.finished for record in result.records]

    assert run(1, NOISE) == run(1, NOISE) != run(2, NOISE)
    assert run(1, NOISE) != run(1, Noise())
    calls = [TraceCall(10.0 * number, 2000, 1, tuple(range(20 * number, 20 * number + 20))) for number in range(2)]
    one, other = replay(Calls(calls), load_policy("round-robin"), scene(2, noise=NOISE), seed=1).records
    assert one.ttft != other.ttft


def test_the_fit_holds_against_noise() -> None:
    workload = Calls(chats(400, 2.0))
    world = world_of(workload, scene(4, noise=NOISE))
    run = Run(world, workload, 0.05, None)
    run.come(workload.start())
    run.go()
    for endpoint in world.endpoints:
        assert 0.6 < world.deciders[0].fleet.cost(endpoint).prefill_scale < 1.6


@pytest.mark.parametrize("scrape", [None, 5.0])
def test_figures_of_engines_are_as_old_as_their_scrapes(scrape: float | None) -> None:
    workload = Calls(chats(60, 4.0))
    world = world_of(workload, scene(2, scrape=scrape))
    run = Run(world, workload, 0.05, None)
    if scrape is not None:
        run.scrape(scrape, Random(1))
    run.come(workload.start())
    run.go()
    for endpoint in world.endpoints:
        metrics = endpoint.metrics
        if scrape is None:
            assert metrics.at is None
        else:
            assert metrics.at is not None
            assert 0 <= world.clock.now - metrics.at <= scrape
            assert (metrics.kv_capacity, metrics.block_size) == (40_000, 100)


def test_progress_goes_from_nothing_to_all() -> None:
    shares: list[float] = []
    replay(Calls(chats(50, 4.0)), load_policy("default"), scene(2), seed=1, progress=shares.append)
    assert shares == [pytest.approx((number + 1) / 50) for number in range(50)]


@pytest.mark.slow
def test_one_engine_waits_as_queueing_theory_says() -> None:
    """Pollaczek and Khinchine, through the whole gateway: one request at a time, nothing shared."""
    machine = replace(MACHINE, max_num_seqs=1, weights=0.0)
    random, at, calls = Random(1), 0.0, []
    lengths = [random.randint(100, 8000) for _ in range(2500)]
    costs = [machine.step + n * (machine.prefill_token + machine.prefill_quadratic * n / 2) for n in lengths]
    rate = 0.5 / fmean(costs)
    for number, length in enumerate(lengths):
        at += random.expovariate(rate)
        calls.append(TraceCall(at, length, 1, tuple(range(number * 80, number * 80 + -(-length // 100)))))
    result = replay(Calls(calls), load_policy("default"), scene(1, machine, scrape=None), seed=1)
    wait = fmean(record.ttft for record in result.records) - fmean(costs)
    assert wait == pytest.approx(rate * fmean(each**2 for each in costs) / (2 * 0.5), rel=0.1)


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (TraceCall(3.0, 250, 1, (1, 2)), "250 tokens has 2 blocks of 100"),
        (TraceCall(3.0, 100, 40_000, (1,)), "at 3 s: 100 . 40000 tokens do not fit 40000"),
        (TraceCall(3.0, 100, 0, (1,)), "at 3 s"),
    ],
)
def test_a_call_that_cannot_be_served_is_named(call: TraceCall, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        replay(Calls([call]), load_policy("default"), scene(1), seed=1)


def test_without_calls_there_are_no_records() -> None:
    assert replay(Calls([]), load_policy("default"), scene(1), seed=1).records == []


def test_a_policy_that_fails_is_no_result() -> None:
    text = POLICIES["round-robin"].replace("round-robin", "nothing-of-the-kind")
    with pytest.raises(ConfigError, match="nothing-of-the-kind"):
        replay(Calls(chats(2, 1.0)), Policy("x", loads(text, {}, "x", MODELS)), scene(1), seed=1)


def test_what_happens_at_once_has_an_order() -> None:
    assert sorted(Next) == [
        *(Next.EVENTS, Next.ROWS, Next.CALL, Next.STEP, Next.SCRAPE, Next.FETCHED, Next.CHANGE, Next.GATE, Next.TICK)
    ]
