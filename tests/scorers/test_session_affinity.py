from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.clock import ManualClock
from gateway.framework import Plan
from gateway.framework.fleet import Model
from scorers.session_affinity import LONGEST, TOGETHER, SessionAffinity
from tests.support.candidates import context, endpoint, request

FLEET = [endpoint(slot) for slot in range(6)]


def scorer(clock=None, **parameters) -> SessionAffinity:
    return SessionAffinity(SessionAffinity.Parameters(**parameters), context(clock=clock))


def test_a_session_stays_where_it_was_placed_last() -> None:
    affinity, asked = scorer(), request(session="s")
    assert affinity.score(asked, FLEET) == [0.0] * 6
    affinity.on_placed(asked, Plan.of(FLEET[2]))
    assert affinity.score(asked, FLEET) == [0, 0, 1, 0, 0, 0]
    affinity.on_placed(asked, Plan.of(FLEET[4], prefill=FLEET[0]))
    assert affinity.score(asked, FLEET) == [1, 0, 0, 0, 1, 0]
    assert affinity.score(asked, FLEET[1:4]) == [0, 0, 0]


def test_it_is_known_by_its_whole_name_and_its_model() -> None:
    affinity = scorer()
    affinity.on_placed(request(session="session-1"), Plan.of(FLEET[0]))
    assert affinity.score(request(session="session-12"), FLEET) == [0.0] * 6
    assert affinity.score(request(session="session-1", model=Model("other")), FLEET) == [0.0] * 6
    long = "x" * 10 * LONGEST
    affinity.on_placed(request(session=long + "a"), Plan.of(FLEET[1]))
    assert affinity.score(request(session=long + "a"), FLEET)[1] == 1
    assert affinity.score(request(session=long + "b"), FLEET) == [0.0] * 6


@pytest.mark.parametrize("by", ["remember", "hash"])
@pytest.mark.parametrize("session", [None, ""])
def test_without_a_session_it_says_nothing(by, session) -> None:
    affinity, asked = scorer(by=by), request(session=session)
    affinity.on_placed(asked, Plan.of(FLEET[0]))
    assert affinity.score(asked, FLEET) == [0.0] * 6


def test_a_session_is_forgotten_after_a_while() -> None:
    clock = ManualClock()
    affinity, asked = scorer(clock, ttl=10.0), request(session="s")
    affinity.on_placed(asked, Plan.of(FLEET[0]))
    clock.now += 10.0
    assert affinity.score(asked, FLEET)[0] == 1
    clock.now += 0.1
    assert affinity.score(asked, FLEET)[0] == 0


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 5), st.floats(0, 3)), max_size=60),
    st.integers(1, 8),
)
def test_it_remembers_the_most_recent_and_no_more(uses, most) -> None:
    clock = ManualClock()
    affinity = scorer(clock, ttl=10.0, sessions=most)
    homes: dict[int, tuple[int, float]] = {}
    for session, slot, later in uses:
        clock.now += later
        affinity.on_placed(request(session=f"s{session}"), Plan.of(FLEET[slot]))
        homes.pop(session, None)
        homes[session] = slot, clock.now
        assert len(affinity._homes) <= most
    alive = [(session, slot) for session, (slot, at) in homes.items() if clock.now - at <= 10.0][-most:]
    for session in homes:
        scores = affinity.score(request(session=f"s{session}"), FLEET)
        assert [slot for slot, score in enumerate(scores) if score] == [s for one, s in alive if one == session]


class Workers:
    """The scorer in each of several workers, whose notes the others hear."""

    def __init__(self, clock: ManualClock, count: int, **parameters) -> None:
        self.all: list[SessionAffinity] = []
        for number in range(count):
            told = replace(context(clock=clock), tell=partial(self.tell, number))
            self.all.append(SessionAffinity(SessionAffinity.Parameters(**parameters), told))

    def tell(self, teller: int, note: bytes) -> None:
        for number, affinity in enumerate(self.all):
            if number != teller:
                affinity.on_heard(note)


def test_what_one_worker_places_the_others_know() -> None:
    first, second = Workers(ManualClock(), 2).all
    first.on_placed(request(session="s"), Plan.of(FLEET[4], prefill=FLEET[0]))
    assert second.score(request(session="s"), FLEET) == [1, 0, 0, 0, 1, 0]
    assert second.score(request(session="s", model=Model("other")), FLEET) == [0] * 6
    second._clock.now += 1
    second.on_placed(request(session="s"), Plan.of(FLEET[3]))
    assert first.score(request(session="s"), FLEET) == [0, 0, 0, 1, 0, 0]


def test_a_worker_that_starts_hears_all_sessions_and_forgets_them_when_the_others_do() -> None:
    clock = ManualClock()
    (first,) = Workers(clock, 1, ttl=10.0).all
    for number in range(2 * TOGETHER + 1):
        first.on_placed(request(session=f"s{number}"), Plan.of(FLEET[number % 6]))
    clock.now += 4.0
    (second,) = Workers(clock, 1, ttl=10.0).all
    second.on_placed(request(session="s1"), Plan.of(FLEET[5]))  # what it has seen itself is newer
    notes = list(first.remembered())
    assert len(notes) == 3
    for note in notes:
        second.on_heard(note)
    assert second.score(request(session="s0"), FLEET)[0] == 1
    assert second.score(request(session="s1"), FLEET) == [0, 0, 0, 0, 0, 1]
    assert len(second._homes) == 2 * TOGETHER + 1
    clock.now += 6.1
    assert second.score(request(session="s0"), FLEET) == [0] * 6
    assert second.score(request(session="s1"), FLEET)[5] == 1


def test_more_sessions_than_it_may_keep_are_not_kept_of_another_worker_either() -> None:
    clock = ManualClock()
    (first,), (second,) = Workers(clock, 1).all, Workers(clock, 1, sessions=2, ttl=10.0).all
    for number in range(5):
        first.on_placed(request(session=f"s{number}"), Plan.of(FLEET[0]))
    for note in first.remembered():
        second.on_heard(note)
    assert len(second._homes) == 2
    clock.now += 11
    for note in first.remembered():  # all of them are too old
        second.on_heard(note)
    assert second.score(request(session="s4"), FLEET) == [0] * 6


def test_by_hash_nothing_is_told() -> None:
    told: list[bytes] = []
    affinity = SessionAffinity(SessionAffinity.Parameters(by="hash"), replace(context(), tell=told.append))
    affinity.on_placed(request(session="s"), Plan.of(FLEET[0]))
    assert told == list(affinity.remembered()) == []


def test_by_hash_sessions_are_spread_and_move_only_to_a_new_endpoint() -> None:
    affinity = scorer(by="hash")

    def home(session, fleet):
        scores = affinity.score(request(session=f"s{session}"), fleet)
        assert sorted(scores, reverse=True) == pytest.approx([1 - i / len(fleet) for i in range(len(fleet))])
        return fleet[scores.index(1.0)]

    before = [home(session, FLEET[:5]) for session in range(1000)]
    after = [home(session, FLEET) for session in range(1000)]
    assert all(now is then or now is FLEET[5] for then, now in zip(before, after, strict=True))
    assert all(120 < after.count(each) < 220 for each in FLEET)


@pytest.mark.parametrize("bad", [{"ttl": 0.0}, {"ttl": float("nan")}, {"sessions": 0}])
def test_parameters_have_ranges(bad) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        SessionAffinity.Parameters(**bad)
