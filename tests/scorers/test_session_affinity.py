from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.clock import ManualClock
from gateway.framework import Plan
from gateway.framework.fleet import Model
from scorers.session_affinity import LONGEST, SessionAffinity
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
