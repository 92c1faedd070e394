from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.framework import Waiting
from queues.start_time import FEW, LATE, StartTimeOrder, in_time_first
from tests.support.waiting import waiting


class BySeconds(StartTimeOrder):
    def charge(self, waiting: Waiting) -> float:
        return waiting.cost

    def spent(self, waiting: Waiting, seconds: float, output: float) -> float:
        return seconds


def queue(order: StartTimeOrder, tenant: str = "a", cost: float = 1.0, **fields) -> Waiting:
    one = waiting(tenant, cost, **fields)
    order.queued(one)
    return one


def test_who_has_had_less_by_its_weight_is_next() -> None:
    order = BySeconds()
    a, b = [queue(order, "a", 3.0) for _ in range(3)], [queue(order, "b", 4.0, weight=2.0) for _ in range(3)]
    assert order.turn(a[0]) == order.turn(b[0]) == 0
    order.placed(a[0])
    assert (order.turn(a[1]), order.turn(b[0])) == (3.0, 0.0)
    order.placed(b[0])
    assert (order.turn(a[1]), order.turn(b[1])) == (3.0, 2.0)
    order.placed(b[1])
    assert (order.turn(a[1]), order.turn(b[2])) == (3.0, 4.0)


def test_what_another_replica_has_charged_counts_where_the_tenant_waits() -> None:
    order = BySeconds()
    assert order.charges() == {}
    a, b = [queue(order, "a", 3.0) for _ in range(3)], queue(order, "b", 4.0, weight=2.0)
    order.placed(a[0])
    order.charged_elsewhere(0, "b", 10.0)
    order.charged_elsewhere(0, "unknown", 10.0)
    order.charged_elsewhere(7, "a", 10.0)
    assert (order.turn(a[1]), order.turn(b)) == (3.0, 10.0)
    order.settled(a[0], 5.0, 0.0)
    assert order.charges() == {(0, "a"): 5.0}, "its own only, and over the weight"
    order.placed(b)
    assert order.charges() == {(0, "b"): 2.0}
    assert order.charges() == {}


def test_of_so_many_tenants_nobody_is_told(monkeypatch) -> None:
    monkeypatch.setattr("queues.start_time.MOST_TOLD", 3)
    order = BySeconds()
    order.charges()
    queue(order, "last")
    for number in range(9):
        order.placed(queue(order, f"t{number}"))
    assert order.charges().keys() == {(0, "t0"), (0, "t1"), (0, "t2")}


def test_who_comes_back_has_saved_nothing_up_and_owes_what_it_had_before() -> None:
    order = BySeconds()
    a = [queue(order, "a") for _ in range(9)]
    order.placed(queue(order, "b", 20.0))
    for one in a[:5]:
        order.placed(one)
    assert order.turn(a[5]) == 5.0
    assert order.turn(queue(order, "new")) == 4.0  # the start of what was placed last
    assert order.turn(queue(order, "b")) == 20.0


def test_what_any_endpoint_gave_counts_at_all_and_what_a_band_gave_there_only() -> None:
    order = BySeconds()
    for fields in ({"slot": 1}, {"slot": 2}, {"slot": 1, "band": 5}):
        queue(order, "b", **fields)
    used = queue(order, "a", 10.0, slot=1)
    queue(order, "a", slot=1)
    order.placed(used)
    assert order.turn(queue(order, "a", slot=1)) == 10.0
    assert order.turn(queue(order, "a", slot=2)) == 10.0
    assert order.turn(queue(order, "a", slot=1, band=5)) == 0.0


def test_what_was_charged_is_corrected_at_the_end() -> None:
    order = BySeconds()
    a, b = [queue(order, "a", weight=2.0) for _ in range(3)], [queue(order, "b") for _ in range(3)]
    order.placed(a[0])
    order.placed(b[0])
    assert (order.turn(a[1]), order.turn(b[1])) == (0.5, 1.0)
    order.settled(a[0], 5.0, 10.0)
    order.settled(b[0], 0.25, 10.0)
    assert (order.turn(a[1]), order.turn(b[1])) == (2.5, 0.25)
    order.settled(a[0], 5.0, 10.0)  # once only
    assert order.turn(a[1]) == 2.5


def test_what_left_is_not_charged() -> None:
    order = BySeconds()
    kept, given_up = queue(order, "a"), queue(order, "a")
    order.left(given_up)
    assert order.turn(kept) == 0.0
    order.settled(given_up, 5.0, 10.0)
    assert order.turn(kept) == 0.0


def test_all_is_forgotten_once_nobody_waits() -> None:
    """Also what has yet to be corrected: its charge is forgotten, too."""
    order = BySeconds()
    a, b = queue(order, "a", 8.0), queue(order, "b")
    order.placed(a)
    order.left(b)
    assert order.turn(queue(order, "a")) == 0.0
    order.settled(a, 2.0, 10.0)
    assert order.turn(queue(order, "a")) == 0.0
    order.settled(waiting(), 1.0, 1.0)  # what it has never seen


def test_tenants_that_are_gone_are_forgotten_while_others_wait() -> None:
    order = BySeconds()
    queue(order, "always", cost=0.0)
    for number in range(1000):
        one, last = queue(order, f"t{number}"), queue(order, f"t{number}")
        order.placed(one)
        order.placed(last)
        order.settled(one, 1.0, 1.0)
        order.settled(last, 1.0, 1.0)
        # Others are served as much: what a tenant had is no more than any has had.
        rival = queue(order, "rival")
        while order.turn(rival) < 2 * number + 2:
            order.placed(rival)
            order.settled(rival, 1.0, 1.0)
            rival = queue(order, "rival")
        order.left(rival)
    assert len(order._charged) == 0
    assert len(order._bands[0].flows) <= 2 * FEW


def test_who_can_be_in_time_goes_before_who_cannot() -> None:
    ones = [
        waiting(arrived=2.0),
        waiting(arrived=1.0, late=True),
        waiting(arrived=3.0),
        waiting(arrived=0.0, late=True),
    ]
    assert [one.arrived for one in sorted(ones, key=in_time_first)] == [2.0, 3.0, 0.0, 1.0]
    assert in_time_first(waiting(arrived=1e8)) < in_time_first(waiting(arrived=0.0, late=True)) < 2 * LATE


COSTS = st.floats(0.01, 10)


@given(
    tenants=st.lists(st.tuples(st.floats(0.1, 10), st.lists(COSTS, min_size=1, max_size=30)), min_size=2, max_size=5)
)
def test_while_both_wait_two_tenants_are_never_further_apart_than_one_request(tenants) -> None:
    order, left, served, largest = BySeconds(), {}, {}, {}
    for number, (weight, costs) in enumerate(tenants):
        name = f"t{number}"
        left[name] = [queue(order, name, cost, weight=weight) for cost in costs]
        served[name], largest[name] = 0.0, max(costs) / weight
    while len(left) > 1:
        name = min(left, key=lambda one: order.turn(left[one][0]))
        one = left[name].pop(0)
        order.placed(one)
        served[name] += one.cost / one.request.tenant.weight
        if not left[name]:
            del left[name]
        for a in left:
            for b in left:
                assert abs(served[a] - served[b]) <= max(largest[a], largest[b]) + 1e-6


@pytest.mark.parametrize("method", ["charge"])
def test_an_order_says_what_it_charges(method) -> None:
    with pytest.raises(NotImplementedError):
        getattr(StartTimeOrder(), method)(waiting())
    with pytest.raises(NotImplementedError):
        StartTimeOrder().spent(waiting(), 1.0, 1.0)
