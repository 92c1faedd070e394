"""Covers: gateway/fleet/load/kept.py, gateway/fleet/load/fit.py, gateway/fleet/load/cost.py."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan
from random import Random

import msgspec
import pytest

from gateway.fleet.load.cost import FittedCost
from gateway.fleet.load.fit import PeerGroup
from gateway.fleet.load.kept import KeptCore, KeptDeviation, KeptLine, KeptPeers
from gateway.fleet.settings import StartingCosts

BIG = StartingCosts()
LINE = KeptLine(2.0, 0.1, 0.0, 1.0, 4.0, 2.0, 2.0, 1.0, 1.0)
DEVIATION = KeptDeviation(0.1, 0, 2.0, 0.2, 0.1)


def learn(costs: list[FittedCost], chance: Random, requests: int, slow: float = 2.0) -> None:
    """Of each of ``costs``, at three times the starting speed; the last one is ``slow`` times slower than that."""
    for at in range(requests):
        for cost in costs:
            scale = 3 * (slow if cost is costs[-1] else 1) * chance.uniform(0.8, 1.25)
            tokens = chance.choice([200, 900, 4000])
            cost.learn_prefill(tokens, 0, scale * tokens * BIG.prefill_token, at=float(at))
            cost.learn_step(2, 1000, scale * BIG.step, at=float(at))
            cost.count_request()


def restored(costs: list[FittedCost], group: PeerGroup) -> list[FittedCost]:
    """Costs of another process that go on from these, by way of JSON."""
    cores = tuple(KeptCore(str(number), None, None, *cost.keep()) for number, cost in enumerate(costs))
    kept = KeptPeers("m", "both", BIG, group.prefill.keep(), group.step.keep(), group.young, cores)
    read = msgspec.json.decode(msgspec.json.encode(kept), type=KeptPeers)
    assert read == kept
    others = PeerGroup()
    again = [FittedCost(BIG, others) for _ in costs]
    others.restore(read.prefill, read.step, read.young)
    for cost, core in zip(again, read.cores, strict=True):
        cost.restore(core.prefill, core.step, core.idle)
    return again


def test_costs_go_on_from_what_was_kept_and_learn_as_they_would_have():
    group, chance = PeerGroup(), Random(3)
    costs = [FittedCost(BIG, group) for _ in range(3)]
    learn(costs, chance, 120)
    group.publish()
    assert costs[2].prefill_scale > 1.5 * costs[0].prefill_scale, "the slow one is known"
    again = restored(costs, group)
    assert [cost.scalars for cost in again] == [cost.scalars for cost in costs]
    learn(costs, Random(4), 60)
    learn(again, Random(4), 60)
    for one, other in zip(costs, again, strict=True):
        # The batch under way was not kept.
        assert other.prefill_scale == pytest.approx(one.prefill_scale, rel=0.1)
        assert other.step_scale == pytest.approx(one.step_scale, rel=0.1)


def test_an_engine_that_got_no_requests_has_faded_as_far_as_before():
    group, chance = PeerGroup(), Random(3)
    costs = [FittedCost(BIG, group) for _ in range(3)]
    learn(costs, chance, 120)
    learn(costs[:2], chance, 60, slow=1.0)
    group.publish()
    again = restored(costs, group)
    assert again[2].scalars == costs[2].scalars


@pytest.mark.parametrize(
    "wrong",
    [
        *({"scale": value} for value in (0.0, 51.0, nan, inf)),
        *({"overhead": value} for value in (-0.1, 2.1, nan)),
        *({"usual": value} for value in (4.0, -4.0)),
        *({"usual_weight": value} for value in (-1.0, 1e4)),
        *({"w": value} for value in (-1.0, nan, inf, 1e31)),
        {"wx": 3.0},
    ],
)
def test_a_line_of_a_file_is_checked(wrong):
    with pytest.raises(ValueError, match="no fit comes to that"):
        replace(LINE, **wrong)


@pytest.mark.parametrize(
    "wrong", [{"certain": nan}, {"certain": 4.0}, {"mean": -4.0}, {"left": -1}, {"count": -1.0}, {"square": nan}]
)
def test_a_deviation_of_a_file_is_checked(wrong):
    with pytest.raises(ValueError, match="no fit comes to that"):
        replace(DEVIATION, **wrong)


@pytest.mark.parametrize("wrong", [{"idle": -1}, {"started": nan}])
def test_a_core_of_a_file_is_checked(wrong):
    with pytest.raises(ValueError, match="no fit comes to that"):
        replace(KeptCore("e", None, None, DEVIATION, DEVIATION), **wrong)


def test_a_group_of_a_file_is_checked():
    with pytest.raises(ValueError, match="no fit comes to that"):
        KeptPeers("m", "both", BIG, LINE, LINE, -1, ())
