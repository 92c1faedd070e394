"""Clocks around functions: own seconds, what the clocks take left out of the step and of the one around it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.data_path.clocks import (
    AROUND,
    CALL,
    EMPTY,
    KINDS,
    TURN,
    Clock,
    Cost,
    Probe,
    Step,
    corrected,
    costs,
    time_call,
    time_turns,
    timed_call,
)
from benchmarks.data_path.steps import Measured, clocks, read, table
from benchmarks.data_path.steps_inside import HANDLED, LOOP, OTHERS, told

READ = 0.25
"""Seconds that a reading of the fake clock takes, all before it returns."""


@pytest.fixture
def spend(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Time passes with what is spent, and with each reading of the clock."""
    now = 0.0

    def thread_time() -> float:
        nonlocal now
        now += READ
        return now

    def spend(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr("time.thread_time", thread_time)
    return spend


def test_steps_within_are_left_out_and_so_are_the_clocks(spend) -> None:
    clock = Clock()
    inner = timed_call(lambda: spend(2.0), "inner", clock)

    def both() -> None:
        spend(1.0)
        inner()
        inner()
        spend(4.0)

    timed_call(both, "outer", clock)()
    asyncio.run(Probe(clock).run())
    call, turn = costs(clock.steps)
    assert call == turn == Cost(own=READ, around=READ), "one reading falls into the step, one before it"
    assert corrected(clock.steps["inner"], [call, turn]) == pytest.approx(4.0)
    assert corrected(clock.steps["outer"], [call, turn]) == pytest.approx(5.0)
    assert (clock.steps["outer"].ended, clock.steps["inner"].ended) == (1, 2)
    assert clock.root.inside == [2, 1]


def test_turns_of_a_coroutine_are_timed_and_what_it_waits_for_is_not(spend) -> None:
    clock = Clock()

    async def twice(waits_for: asyncio.Future[int]) -> int:
        spend(1.0)
        got = await waits_for
        spend(2.0)
        return got

    owner = SimpleNamespace(twice=twice, call=lambda: spend(8.0))
    time_turns(owner, "twice", "twice", clock)
    time_call(owner, "call", "call", clock)

    async def main() -> int:
        waits_for: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(owner.twice(waits_for))
        await asyncio.sleep(0)
        owner.call()
        waits_for.set_result(7)
        return int(await task)

    assert asyncio.run(main()) == 7
    step = clock.steps["twice"]
    assert (step.entries, step.ended) == (2, 1)
    assert corrected(step, [Cost(READ, READ)] * 2) == pytest.approx(3.0)
    assert corrected(clock.steps["call"], [Cost(READ, READ)] * 2) == pytest.approx(8.0)
    assert clock.root.inside == [1, 2]


def test_errors_and_cancelling_pass_and_end_a_step() -> None:
    clock = Clock()
    seen: list[BaseException] = []

    async def waits() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError as error:
            seen.append(error)
            raise

    def fails() -> None:
        raise ValueError("as was to be")

    owner = SimpleNamespace(waits=waits, fails=fails)
    time_turns(owner, "waits", "waits", clock)
    time_call(owner, "fails", "fails", clock)

    async def main() -> None:
        task = asyncio.create_task(owner.waits())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(ValueError, match="as was to be"):
            owner.fails()

    asyncio.run(main())
    assert len(seen) == 1
    assert [clock.steps[name].ended for name in ("waits", "fails")] == [1, 1]
    assert clock.at is clock.root


def test_other_threads_are_not_timed() -> None:
    clock = Clock()
    timed = timed_call(lambda: 5, "here", clock)
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(timed()))
    thread.start()
    thread.join()
    assert found == [5]
    assert clock.steps["here"].entries == 0


SECONDS = st.floats(0.0, 1e-3)


@given(
    st.lists(st.tuples(SECONDS, st.integers(0, 50), st.sampled_from([CALL, TURN])), min_size=1, max_size=6),
    *(st.tuples(SECONDS, SECONDS) for _ in KINDS),
)
def test_what_is_told_adds_up(shape, call, turn) -> None:
    """Steps of known own seconds, each within the one before it, entered so many times: with what their clocks took
    added, and left out again, the own seconds are found, and the rest is the loop's."""
    each = [Cost(*call), Cost(*turn)]
    root, rest = Step(CALL), 0.5
    steps = {
        form.format(kind): Step(number, spent, 1)
        for number, kind in enumerate(KINDS)
        for form, spent in ((EMPTY, each[number].own), (AROUND, each[number].own + each[number].around))
    }
    for number in range(len(KINDS)):
        root.inside[number] += 1  # the outer one of each pair
        steps[AROUND.format(KINDS[number])].inside[number] += 1
    around = root
    for number, (own, entries, kind) in enumerate(shape):
        around.inside[kind] += entries
        around.spent += entries * each[kind].around
        steps[f"{number}"] = around = Step(kind, own + entries * each[kind].own, entries, entries)
    pairs = sum(cost.around for cost in each)
    thread = rest + root.spent + pairs + sum(step.spent for step in steps.values())
    seen = told(steps, root, thread + 0.25, thread)
    assert set(seen.steps) == {*map(str, range(len(shape))), LOOP, OTHERS}
    for number, (own, entries, _) in enumerate(shape):
        assert seen.steps[f"{number}"] == (entries, pytest.approx(own, abs=1e-9))
    assert seen.steps[LOOP][1] == pytest.approx(rest)
    assert seen.steps[OTHERS][1] == pytest.approx(0.25)
    left_out = sum(count * (own + around) for count, own, around in seen.clocks.values())
    assert seen.seconds == pytest.approx(left_out + sum(spent for _, spent in seen.steps.values()))


def measured(without: list[float]) -> Measured:
    return read(
        {
            "steps": {HANDLED: (100, 0.002), "match": (100, 0.003), LOOP: (1, 0.005), OTHERS: (1, 0.001)},
            "clocks": {"call": (2000, 5e-7, 1e-6), "turn": (0, 0.0, 0.0)},
        },
        without,
    )


def test_the_table_says_what_is_left_and_what_was_subtracted() -> None:
    columns = {"answer-2-known": measured([120.0, 100.0, 115.0])}
    lines = table(columns).splitlines()
    assert lines[0] == "| step | answer-2-known, µs | times |"
    assert lines[2:] == [
        f"| {LOOP} | 50 | 1.00 |",
        "| match | 30 | 1.00 |",
        f"| {HANDLED} | 20 | 1.00 |",
        f"| {OTHERS} | 10 | 1.00 |",
        "| **all of these** | **110** | |",
        "| the same gateway without clocks | 115 | |",
        "| ... in single rounds | 100 to 120 | |",
        "| remainder | +5 | |",
        "| clocks, already subtracted | 30 | |",
    ]
    assert "20.0 around a call (0.50 + 1.00 µs), 0.0 around a turn" in clocks(columns)
