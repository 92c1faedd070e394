from __future__ import annotations

from typing import Any

import pytest

from gateway.flow.guarded_order import GuardedOrder
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
