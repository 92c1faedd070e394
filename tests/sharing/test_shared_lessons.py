"""Workers that learn from each other's answers, over real Unix sockets."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest

from gateway.fleet.load.cost import FittedCost
from gateway.fleet.load.lessons import ANSWER, REQUEST, STEP
from gateway.fleet.settings import StartingCosts
from gateway.framework import Endpoint
from gateway.framework.fleet import Model
from gateway.sharing.shared_lessons import GATHERED, HEARD, TOPIC, SharedLessons, Told
from gateway.sharing.siblings import Siblings
from tests.support.candidates import endpoint
from tests.support.wait import eventually


def learning(siblings: Siblings, *slots: int) -> tuple[SharedLessons, list[Endpoint], list[FittedCost]]:
    shared, endpoints, costs = SharedLessons(siblings, Random(0)), [], []
    for slot in slots:
        each = endpoint(slot, model=Model("sim"))
        each.cost = cost = FittedCost(StartingCosts())
        shared.endpoint_added(each)
        endpoints.append(each)
        costs.append(cost)
    return shared, endpoints, costs


async def test_what_one_learns_all_learn(workers):
    one, two = await workers(0, 2), await workers(1, 2)
    await eventually(lambda: one.siblings.live == two.siblings.live == {0, 1})
    first, ours, costs = learning(one.siblings, 0, 1)
    _, theirs, heard = learning(two.siblings, 1, 2)
    for number in range(6):
        for cost in costs:
            cost.learn_step(4, 1000, 3 * StartingCosts().step, at=float(number))
            cost.count_request()
    assert costs[1].tell is not None
    costs[1].tell(ANSWER, (2.0, 512.0), "sim")
    await eventually(lambda: heard[0].step_scale == costs[1].step_scale > 2, within=30)
    assert heard[1].step_scale == 1  # nobody knows of that one
    assert theirs[0].model.expected_output > 256 == theirs[1].model.expected_output
    first.endpoint_dropped(ours[1])
    assert costs[1].tell is None


async def test_busy_workers_tell_a_sample_that_keeps_the_proportions(workers):
    one, two = await workers(0, 2), await workers(1, 2)
    await eventually(lambda: one.siblings.live == two.siblings.live == {0, 1})
    told: list[tuple[str, str, str, tuple[float, ...]]] = []
    two.siblings.hear(TOPIC, lambda number, message: told.extend(msgspec.msgpack.decode(message, type=list[Told])))
    _, _, [first, second] = learning(one.siblings, 0, 1)
    for number in range(900):
        for cost in (first, first, second):
            cost.learn_step(4, 1000, 0.1, at=float(number))
            cost.count_request()
    await eventually(lambda: told, within=30)
    assert len(told) == HEARD * GATHERED
    assert {(core, kind) for core, _, kind, _ in told} == {("e0", STEP), ("e0", REQUEST), ("e1", STEP), ("e1", REQUEST)}


class Many:
    """One of ``count`` workers, without the others."""

    def __init__(self, count: int) -> None:
        self.live = set(range(count))
        self.told: list[int] = []
        """Lessons of each message."""

    def hear(self, topic: str, heard: object) -> None:
        pass

    def tell(self, topic: str, message: bytes) -> None:
        self.told.append(len(msgspec.msgpack.decode(message)))


@pytest.mark.parametrize("count", [2, 16, 32, 256])
async def test_a_worker_hears_no_more_where_there_are_many(count: int) -> None:
    siblings: Any = Many(count)
    shared, _, [cost] = learning(siblings, 0)
    for _ in range(1000):
        for number in range(30):
            cost.learn_step(4, 1000, 0.1, at=float(number))
        shared._flush()
    assert sum(siblings.told) * (count - 1) / (1000 * GATHERED) == pytest.approx(HEARD, rel=0.25)
    assert min(siblings.told) > 0, "where nothing is chosen nothing is told"


async def test_what_cannot_be_a_lesson_is_not_learned(workers):
    one, two = await workers(0, 2), await workers(1, 2)
    await eventually(lambda: one.siblings.live == two.siblings.live == {0, 1})
    _, _, [cost] = learning(two.siblings, 0)
    before = cost.scalars
    bad = [("e0", "", STEP, (1.0,)), ("e0", "", STEP, (1.0, 2.0, float("nan"), 3.0)), ("e0", "", "else", ())]
    one.siblings.tell(TOPIC, b"\xc1")
    one.siblings.tell(TOPIC, msgspec.msgpack.encode(bad))
    one.siblings.tell("t", b"last")
    await eventually(lambda: two.heard, within=30)
    cost.count_request()
    assert cost.scalars == before
