"""Covers: gateway/flow/lines.py, gateway/flow/line.py.

Who waits where, and who is next, with orders made for the test.
"""

from __future__ import annotations

import pytest

from gateway.flow.guarded_order import GuardedOrder
from gateway.flow.line import COMPARED, Line
from gateway.flow.lines import Lines
from gateway.framework import Waiting
from queues.start_time import in_time_first
from tests.support.candidates import Notes, request
from tests.support.waiting import Recorded, waiting


def lines(*ones: Waiting, slot: int = 0, reserve=None, **order) -> Lines[Waiting]:
    found: Lines[Waiting] = Lines(Recorded(**order), reserve)
    for one in ones:
        found.push(one, slot)
    return found


def drained(found: Lines[Waiting], slot: int = 0) -> list[Waiting]:
    ones = []
    while (one := found.first(slot)) is not None:
        found.take(one)
        ones.append(one)
    return ones


def test_the_highest_band_first_then_the_tenants_turn_then_the_rank() -> None:
    low, a1, a2, b = waiting(band=-1), waiting("a", arrived=1.0), waiting("a", arrived=2.0), waiting("b", arrived=1.5)
    high = waiting("c", band=10, arrived=9.0)
    turns = {"a": 1.0, "b": 0.0, "c": 0.0}
    found = lines(low, a1, a2, b, high, rank=lambda one: -one.arrived, turn=lambda one: turns[one.request.tenant.name])
    assert drained(found) == [high, b, a2, a1, low]
    assert (len(found), found.slots, found.total.requests) == (0, [], 0)


def test_each_endpoint_has_a_line_of_its_own() -> None:
    here, there = waiting(arrived=2.0), waiting(arrived=1.0)
    found = lines(here)
    found.push(there, 7)
    assert (found.first(0), found.first(7), found.first(3)) == (here, there, None)
    assert (here.slot, there.slot, found.slots) == (0, 7, [0, 7])
    assert (found.of_line(0), found.of_line(3)) == (1, 0)
    assert found.firsts() == [there, here]
    urgent = waiting(arrived=5.0, band=1)
    found.push(urgent, 9)
    assert found.firsts() == [urgent, there, here]


def test_a_turn_that_has_grown_is_asked_for_before_a_choice() -> None:
    turns = {"a": 0.0, "b": 1.0}
    a, b = waiting("a"), waiting("b")
    found = lines(a, b, turn=lambda one: turns[one.request.tenant.name])
    turns["a"] = 2.0
    assert found.first(0) is b
    turns["b"] = 3.0
    assert found.first(0) is a


@pytest.mark.parametrize("slot", [0, 1])
def test_a_turn_that_is_less_at_the_end_of_a_request_anywhere_is_asked_for_then(slot: int) -> None:
    turns = {"a": 5.0, "b": 1.0}
    a, b, gone = waiting("a"), waiting("b"), waiting("a")
    found = lines(a, b, turn=lambda one: turns[one.request.tenant.name])
    found.place_at_once(gone, slot)
    turns["a"] = 0.0
    found.settled(gone, 1.0, 1.0)
    assert found.first(0) is a


def test_an_order_that_grows_whenever_it_is_asked_ends() -> None:
    count = iter(range(10**6))
    found = lines(*[waiting(f"t{number}") for number in range(50)], turn=lambda one: float(next(count)))
    assert found.first(0) is not None
    assert next(count) < 200
    assert len(drained(found)) == 50


def test_the_order_is_told_all_of_it_once() -> None:
    one, other, third = waiting(), waiting(), waiting()
    found = lines(one, other)
    found.move(one, 3, cost=2.0, tokens=5.0)
    found.take(one)
    found.settled(one, 1.0, 2.0)
    found.remove(other)
    assert not found.remove(other)
    found.place_at_once(third, 1)
    order = found._order
    assert isinstance(order, Recorded)
    assert [what for what, who in order.told if who is one] == ["queued", "left", "queued", "placed", "settled"]
    assert [what for what, who in order.told if who is other] == ["queued", "left"]
    assert [what for what, who in order.told if who is third] == ["queued", "placed"]
    assert (one.slot, one.cost, one.tokens, third.slot) == (3, 2.0, 5.0, 1)


def test_what_does_not_wait_cannot_be_placed_and_what_waits_not_be_put_again() -> None:
    one = waiting()
    found = lines(one)
    with pytest.raises(ValueError, match="waits already"):
        found.push(one, 1)
    found.remove(one)
    for step in (found.take, lambda gone: found.move(gone, 1)):
        with pytest.raises(KeyError):
            step(one)
    found.turn_late(one)
    assert not one.late


def test_who_is_late_goes_behind_its_own_tenants_others() -> None:
    first, second, other = waiting(arrived=1.0), waiting(arrived=2.0), waiting("b", arrived=9.0)
    found = lines(
        first, second, other, rank=in_time_first, turn=lambda one: 0.0 if one.request.tenant.name == "a" else 1.0
    )
    found.turn_late(first)
    assert first.late
    assert drained(found) == [second, first, other]


def test_sums_are_of_what_waits() -> None:
    one, two = waiting("a", 1.5, tokens=100.0, size=10), waiting("a", 2.0, tokens=50.0, size=20, band=2)
    other = waiting("b", 0.1, tokens=7.0, size=5)
    found = lines(one, two, other)
    one.cost = 99.0  # what it counts for is what it was put in with
    a, total = found.of_tenant("a"), found.total
    assert (a.requests, a.seconds, a.tokens, a.size) == (2, 3.5, 150.0, 30)
    assert (total.requests, total.tokens, total.size) == (3, 157.0, 35)
    assert found.by_band()[2, "a"].seconds == 2.0
    found.take(one)
    found.remove(two)
    assert found.of_tenant("a").requests == 0
    assert found.total.seconds == pytest.approx(0.1)
    found.take(other)
    assert (found.total.seconds, found.by_band()) == (0.0, {})


class TestTheWorst:
    def test_is_the_last_of_the_tenant_with_most_work_in_the_lowest_band(self) -> None:
        high = waiting("greedy", 100.0, arrived=0.0, band=1)
        big, small = waiting("b", 2.0, arrived=1.0), waiting("a", 1.0, arrived=9.0)
        newest = waiting("b", 2.0, arrived=2.0)
        found = lines(high, big, newest, small)
        assert found.worst() is newest
        assert found.worst("a") is small
        found.remove(newest)
        found.remove(big)
        assert found.worst() is small
        found.remove(small)
        assert found.worst() is high
        assert found.worst("a") is None

    def test_is_late_rather_than_new(self) -> None:
        late, new = waiting(arrived=1.0), waiting(arrived=2.0)
        found = lines(late, new, rank=in_time_first)
        found.turn_late(late)
        assert found.worst() is late

    def test_is_of_all_endpoints(self) -> None:
        found = lines(waiting(arrived=1.0), slot=1)
        there = waiting(arrived=2.0)
        found.push(there, 2)
        assert found.worst() is there


class TestAhead:
    def test_is_as_much_of_each_tenant_as_the_own_one_has_waiting(self) -> None:
        found = lines(waiting("a", 2.0), waiting("a", 1.0), waiting("b", 10.0), waiting("c", 0.5))
        found.push(waiting("b", 4.0), 1)
        asked = waiting("a").request
        # 3 s of its own, as much of b's, and all of c's.
        assert found.ahead(asked) == {0: pytest.approx(6.5), 1: 0.0}
        assert found.ahead(waiting("b").request) == {0: pytest.approx(13.5), 1: 4.0}
        assert found.ahead(waiting("b").request, besides=0) == {0: 0.0, 1: 4.0}
        assert found.ahead(waiting("new").request) == {0: 0.0, 1: 0.0}
        assert lines().ahead(asked) == {}

    def test_goes_by_weight(self) -> None:
        found = lines(waiting("a", 2.0), waiting("b", 10.0, weight=3.0))
        assert found.ahead(waiting("a").request) == {0: pytest.approx(2.0 + 6.0)}

    def test_has_all_of_higher_bands_and_nothing_of_lower_ones(self) -> None:
        found = lines(waiting("a", 2.0, band=1), waiting("b", 3.0, band=-1))
        assert found.ahead(request()) == {0: 2.0}
        assert found.ahead(waiting("b", band=5).request) == {0: 0.0}


class TestReserve:
    def served(self, reserve: dict[int, float], costs: dict[int, float], rounds: int = 400) -> dict[int, float]:
        """Seconds that each band has had of one endpoint, while each has always something waiting."""
        found: Lines[Waiting] = Lines(Recorded(), reserve)
        for band, cost in costs.items():
            found.push(waiting(cost=cost, band=band), 0)
        had = dict.fromkeys(costs, 0.0)
        for _ in range(rounds):
            one = found.first(0)
            assert one is not None
            found.push(waiting(cost=one.cost, band=one.request.band), 0)
            found.take(one)
            had[one.request.band] += one.cost
        return had

    def test_without_one_bands_are_strict(self) -> None:
        assert self.served({}, {0: 1.0, -1: 1.0})[-1] == 0.0

    def test_a_low_band_gets_its_share_and_no_more(self) -> None:
        had = self.served({-1: 0.1}, {0: 1.0, -1: 3.0})
        assert had[-1] / sum(had.values()) == pytest.approx(0.1, abs=0.01)

    def test_several_get_theirs(self) -> None:
        had = self.served({-1: 0.1, -2: 0.2}, {5: 0.7, -1: 1.0, -2: 0.1, -3: 1.0}, rounds=2000)
        shares = {band: seconds / sum(had.values()) for band, seconds in had.items()}
        assert shares == {
            5: pytest.approx(0.7, abs=0.02),
            -1: pytest.approx(0.1, abs=0.02),
            -2: pytest.approx(0.2, abs=0.02),
            -3: 0.0,
        }

    def test_who_does_not_wait_saves_nothing_up(self) -> None:
        line: Line[Waiting] = Line()
        for _ in range(10):
            line.pay(0, 100.0, {-1: 0.5})
        assert line.owed == {-1: 0.0}
        line.pay(-1, 10.0, {-1: 0.5})
        for _ in range(10):
            line.pay(0, 1.0, {-1: 0.5})
        assert line.owed[-1] == pytest.approx(0.0)


def test_who_is_late_is_not_ahead_of_a_newcomer_of_its_tenant_and_counts_for_others_as_before():
    lines = Lines(Recorded())
    late, timely, other = waiting("a", 3.0), waiting("a", 1.0), waiting("b", 5.0)
    for one in (late, timely, other):
        lines.push(one, 0)
    assert lines.ahead(timely.request) == {0: 4.0 + 4.0}
    lines.turn_late(late)
    assert lines.ahead(timely.request) == {0: 1.0 + 1.0}
    assert lines.ahead(other.request) == {0: 5.0 + 4.0}
    lines.turn_late(timely)
    assert lines.ahead(timely.request) == {0: 0.0}
    for one in (late, timely):
        lines.remove(one)
    assert lines.ahead(other.request) == {0: 5.0}


def test_of_many_tenants_what_is_ahead_is_bounded_from_above_without_a_look_at_each():
    lines = Lines(Recorded())
    entries = [waiting(f"t{number}", 1.0 + number % 3, weight=1.0 + number % 2) for number in range(2 * COMPARED)]
    for one in entries:
        lines.push(one, 0)
    whole = sum(one.cost for one in entries)
    for one in entries:
        weight = one.request.tenant.weight
        exact = sum(min(other.cost, one.cost * other.request.tenant.weight / weight) for other in entries)
        assert exact - 1e-9 <= lines.ahead(one.request)[0] <= whole + 1e-9
    for one in entries[: COMPARED + 5]:
        lines.remove(one)
    left = entries[COMPARED + 5 :]
    weight = left[0].request.tenant.weight
    exact = sum(min(other.cost, left[0].cost * other.request.tenant.weight / weight) for other in left)
    assert lines.ahead(left[0].request)[0] == pytest.approx(exact)


def test_a_turn_that_became_less_elsewhere_is_asked_for():
    turns = {"a": 5.0, "b": 3.0}

    class Sharing(Recorded):
        def charged_elsewhere(self, band: int, tenant: str, amount: float) -> None:
            turns[tenant] += amount

    lines = Lines(GuardedOrder(Sharing(turn=lambda one: turns[one.request.tenant.name]), "fair", Notes()))
    a, b = waiting("a"), waiting("b")
    for one in (a, b):
        lines.push(one, 0)
    assert lines.first(0) is b
    lines.charged_elsewhere(0, "a", -4.0)
    assert lines.first(0) is a
    lines.charged_elsewhere(0, "a", 4.0)
    assert lines.first(0) is b
