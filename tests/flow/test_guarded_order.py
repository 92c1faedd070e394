from __future__ import annotations

from math import inf
from typing import Any

import pytest

from gateway.flow.guarded_order import FARTHEST_BAND, LONGEST_NAME, GuardedOrder
from gateway.sharing.messages import VERSION, Charged, Loads, decode, encode
from tests.support.candidates import Notes
from tests.support.waiting import Recorded, waiting


class Broken:
    """All of it raises."""

    def __getattr__(self, name: str) -> Any:
        def fails(*_: Any) -> float:
            raise RuntimeError(name)

        return fails


def test_what_works_is_passed_on() -> None:
    inner, notes = Recorded(rank=lambda one: 2 * one.cost, turn=lambda one: 3), Notes()
    order, one = GuardedOrder(inner, "fair", notes), waiting(cost=1.5)
    order.queued(one)
    order.left(one)
    order.placed(one)
    order.settled(one, 1.0, 2.0)
    assert inner.told == [("queued", one), ("left", one), ("placed", one), ("settled", one)]
    assert (order.rank(one), order.turn(one)) == (3.0, 3)
    assert notes.failed == []


class Sharing(Recorded):
    def charges(self) -> dict[tuple[int, str], float]:
        return {(0, "a"): 1}

    def charged_elsewhere(self, *what: Any) -> None:
        self.told.append(what)


def test_an_order_may_know_of_other_replicas_or_not() -> None:
    inner, notes = Sharing(), Notes()
    order = GuardedOrder(inner, "fair", notes)
    order.charged_elsewhere(0, "a", 2.0)
    assert (inner.told, order.charges()) == ([(0, "a", 2.0)], {(0, "a"): 1.0})
    order = GuardedOrder(Recorded(), "mine", notes)
    order.charged_elsewhere(0, "a", 2.0)
    assert order.charges() == {}
    assert notes.failed == []
    order = GuardedOrder(Broken(), "mine", notes)
    order.charged_elsewhere(0, "a", 2.0)
    assert order.charges() == {}
    assert len(notes.failed) == 2


def test_no_failure_gets_out_and_each_is_counted() -> None:
    notes = Notes()
    order, one = GuardedOrder(Broken(), "mine", notes), waiting(arrived=7.0)
    order.queued(one)
    order.left(one)
    order.placed(one)
    order.settled(one, 1.0, 2.0)
    assert (order.rank(one), order.turn(one)) == (7.0, 7.0)
    assert [(kind, name, str(error)) for kind, name, error in notes.failed] == [
        ("queue", "mine", method) for method in ("queued", "left", "placed", "settled", "rank", "turn")
    ]


@pytest.mark.parametrize("answer", [float("nan"), None, "first", [1]])
def test_what_is_no_number_is_a_failure(answer: Any) -> None:
    notes = Notes()
    order = GuardedOrder(Recorded(rank=lambda one: answer, turn=lambda one: answer), "mine", notes)
    assert (order.rank(waiting(arrived=7.0)), order.turn(waiting(arrived=8.0))) == (7.0, 8.0)
    assert len(notes.failed) == 2
    assert "must return a number" in str(notes.failed[0][2])


class Charging(Recorded):
    def __init__(self, charged: Any) -> None:
        super().__init__()
        self.charged = charged

    def charges(self) -> Any:
        return self.charged


LONG = "x" * (LONGEST_NAME + 1)
WRONG: list[Any] = [
    *(None, 3, "red", {"red": 1.0}, {(0, "red", 1): 1.0}, {("hi", 3): 1.0}, {(1.0, "red"): 1.0}, {(True, "red"): 1.0}),
    *({(1 << 64, "red"): 1.0}, {(0, LONG): 1.0}, {(0, "\udc80"): 1.0}, {(0, "red"): "much"}, {(0, "red"): inf}),
]


@pytest.mark.parametrize("wrong", WRONG)
def test_charges_that_cannot_be_told_to_replicas_are_a_failure(wrong: Any) -> None:
    notes = Notes()
    assert GuardedOrder(Charging(wrong), "mine", notes).charges() == {}
    assert len(notes.failed) == 1


def test_charges_that_pass_are_taken_by_replicas() -> None:
    charged = {(FARTHEST_BAND - 1, "é" * LONGEST_NAME): 1e308, (1 - FARTHEST_BAND, ""): 0}
    told = GuardedOrder(Charging(charged), "mine", Notes()).charges()
    message = Loads(VERSION, "a", 1, 1, True, (), tuple(Charged("m", *key, amount) for key, amount in told.items()))
    assert decode(encode(message)) == message
    assert told == charged
