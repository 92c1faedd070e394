"""Covers: queues/fair_cost.py, queues/fair_tokens.py, queues/fair_requests.py, queues/first_come.py,
queues/earliest_deadline.py.

What each built-in order charges, and whom it puts first.
"""

from __future__ import annotations

from typing import Any

import pytest

from gateway.framework import Kind, NoParameters, Order, Waiting
from queues.earliest_deadline import EarliestDeadline
from queues.fair_cost import FairCost
from queues.fair_requests import FairRequests
from queues.fair_tokens import FairTokens
from queues.first_come import FirstCome
from queues.start_time import StartTimeOrder
from tests.support.candidates import context
from tests.support.waiting import waiting


def made(kind: type[Any], **parameters: Any) -> Any:
    return kind(kind.Parameters(**parameters), context())


def asked(prompt: int, expected: float, kind: Kind = Kind.CHAT, **fields: Any) -> Waiting:
    one = waiting(**fields)
    one.request.prompt_tokens, one.request.expected_output, one.request.kind = prompt, expected, kind
    return one


def test_fair_by_what() -> None:
    one = asked(1000, 200.0, cost=0.3)
    by_cost, by_tokens, by_requests = made(FairCost), made(FairTokens), made(FairRequests)
    assert (by_cost.charge(one), by_cost.spent(one, 0.7, 90)) == (0.3, 0.7)
    assert (by_tokens.charge(one), by_tokens.spent(one, 0.7, 90)) == (1400.0, 1180.0)
    assert (by_requests.charge(one), by_requests.spent(one, 0.7, 90)) == (1.0, 1.0)
    assert made(FairTokens, prompt=0.5, output=4.0).charge(one) == 500 + 800
    assert by_tokens.charge(asked(1000, 200.0, Kind.EMBEDDING)) == 1000.0


@pytest.mark.parametrize("bad", [{"prompt": -1.0}, {"output": float("nan")}, {"prompt": 0.0, "output": 0.0}])
def test_the_weights_of_tokens_have_ranges(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must"):
        FairTokens.Parameters(**bad)


@pytest.mark.parametrize("kind", [FairCost, FairTokens, FairRequests])
def test_the_fair_ones_put_who_can_be_in_time_first(kind: type[StartTimeOrder]) -> None:
    order = made(kind)
    assert order.rank(waiting(arrived=9.0)) < order.rank(waiting(arrived=1.0, late=True))


def in_order(order: Order, ones: list[Waiting]) -> list[Waiting]:
    for one in ones:
        order.queued(one)
        order.placed(one)
        order.left(one)
        order.settled(one, 1.0, 1.0)
    assert all(order.turn(one) == order.rank(one) for one in ones)
    return sorted(ones, key=order.rank)


def test_first_come_first_served_whatever_else() -> None:
    late, other, first = waiting(arrived=2.0, late=True), waiting("b", arrived=3.0), waiting(arrived=1.0, due=9.0)
    order = FirstCome(NoParameters(), context())
    assert in_order(order, [late, other, first]) == [first, late, other]


def test_earliest_deadline_and_what_has_missed_it_last() -> None:
    ones = [waiting(due=due, late=late) for due, late in ((5.0, False), (1.0, True), (3.0, False), (0.5, True))]
    order = EarliestDeadline(NoParameters(), context())
    assert [one.due for one in in_order(order, ones)] == [3.0, 5.0, 0.5, 1.0]
