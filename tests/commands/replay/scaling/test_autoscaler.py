from __future__ import annotations

from collections.abc import Sequence

import pytest

from gateway.commands.replay.event_loop import replay
from gateway.commands.replay.fleet import kinds
from gateway.commands.replay.legs import Legs
from gateway.commands.replay.policies import load_policy
from gateway.commands.replay.scaling.autoscaler import POLL, Autoscaler
from gateway.commands.replay.scaling.triggers import Trigger, triggers
from gateway.commands.replay.scene import Scene
from gateway.commands.replay.workload import Result, TraceCall
from gateway.commands.replay.world import World
from gateway.framework.request import Slo

SCENE = Scene(fleet=kinds("6 x 8b-h100"))
SLO = Slo(ttft=2.0, tpot=0.05)
JOIN = 40.0
STABLE = 90.0
"""A short one, so that a run is short."""


class Calls:
    """``rates``: requests a second, and for how many seconds, one after the other."""

    name, block_size = "calls", 400

    def __init__(self, *rates: tuple[float, float]) -> None:
        self._calls: list[TraceCall] = []
        at = 0.0
        for rate, seconds in rates:
            for number in range(int(rate * seconds)):
                first = 1000 * len(self._calls)
                self._calls.append(TraceCall(at + number / rate, 8000, 60, range(first, first + 21)))
            at += seconds

    def start(self) -> Sequence[TraceCall]:
        return self._calls

    def answered(self, call: TraceCall, at: float) -> Sequence[TraceCall]:
        return ()


class Watched(Autoscaler):
    """``sizes``: when it looked, how many engines serve, and how many are paid."""

    def __init__(self, world: World, legs: Legs, trigger: Trigger, first: int) -> None:
        super().__init__(world, legs, trigger=trigger, first=first, join=JOIN, slo=SLO)
        self.sizes: list[tuple[float, int, int]] = []

    def _look(self, now: float) -> None:
        super()._look(now)
        self.sizes.append((now, len(self._active), len(self._since)))


def run(calls: Calls, text: str, first: int) -> tuple[Result, Watched]:
    made: list[Watched] = []
    [trigger] = triggers(text)

    def gate(world: World, legs: Legs) -> Watched:
        made.append(Watched(world, legs, trigger, first))
        return made[0]

    result = replay(calls, load_policy("default"), SCENE, seed=1, gate=gate)
    assert (len(result.records), result.lost, result.refused) == (len(calls.start()), [], [])
    return result, made[0]


def test_a_fixed_fleet_is_paid_from_the_beginning_to_the_end() -> None:
    result, scaler = run(Calls((1.0, 60.0)), "fixed:2", first=2)
    assert {record.endpoint for record in result.records} == {0, 1}
    assert scaler.paid == pytest.approx(2 * result.seconds, rel=0.01)
    assert scaler.most == 2


def test_an_engine_is_paid_when_it_starts_and_serves_when_it_has_joined() -> None:
    result, scaler = run(Calls((1.0, 120.0)), "fixed:3", first=1)
    assert (scaler.sizes[0], scaler.sizes[1]) == ((POLL, 1, 3), (2 * POLL, 1, 3))
    early = [one for one in result.records if one.call.at < POLL + JOIN]
    assert {record.endpoint for record in early} == {0}
    late = [one for one in result.records if one.call.at > POLL + JOIN + 5]
    assert {record.endpoint for record in late} >= {1, 2}


def test_the_fleet_follows_the_load_up_at_once_and_down_when_it_has_been_low_for_long(monkeypatch) -> None:
    monkeypatch.setattr("gateway.commands.replay.scaling.autoscaler.STABLE", STABLE)
    _, scaler = run(Calls((8.0, 60.0), (0.2, STABLE + 120.0)), "wanted", first=1)
    most = max(paid for _, _, paid in scaler.sizes)
    assert most == scaler.most >= 3
    for at, _, paid in scaler.sizes:
        if 60.0 < at < 60.0 + STABLE - 2 * POLL:
            assert paid == most, "a lull is too short"
    assert scaler.sizes[-1][2] == 1
    assert scaler.paid < most * scaler.sizes[-1][0]


def test_one_that_is_stopped_before_it_has_joined_never_serves(monkeypatch) -> None:
    monkeypatch.setattr("gateway.commands.replay.scaling.autoscaler.STABLE", POLL)
    asked = iter([3, 1, 1, 1, 1, 1])
    monkeypatch.setattr(Trigger, "desired", lambda self, figures: next(asked, 1))
    result, scaler = run(Calls((1.0, 90.0)), "fixed:3", first=1)
    assert {record.endpoint for record in result.records} == {0}
    assert [paid for _, _, paid in scaler.sizes[:3]] == [3, 1, 1]


def test_one_that_comes_back_has_an_empty_cache(monkeypatch) -> None:
    monkeypatch.setattr("gateway.commands.replay.scaling.autoscaler.STABLE", POLL)
    asked = iter([1, 1, 1, 2])
    monkeypatch.setattr(Trigger, "desired", lambda self, figures: next(asked, 2))
    result, scaler = run(Calls((4.0, 130.0)), "fixed:2", first=2)
    assert [active for _, active, _ in scaler.sizes][:3] == [1, 1, 1]
    late = {one.endpoint for one in result.records if one.call.at > 4 * POLL + JOIN + 5}
    assert len(late) == 2
