from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from gateway.framework import NoParameters
from gateway.framework.fleet import Model
from pickers import round_robin
from pickers.round_robin import RoundRobin
from tests.support.candidates import context, endpoint, names, request

FLEET = [endpoint(slot) for slot in range(4)]


def picks(picker, endpoints, times=1, model=None):
    fields = {"model": model} if model else {}
    return [picker.pick(request(**fields), endpoints, [0.0] * len(endpoints))[0].name for _ in range(times)]


def test_it_rotates() -> None:
    assert picks(RoundRobin(NoParameters(), context()), FLEET[:3], 7) == ["e0", "e1", "e2", "e0", "e1", "e2", "e0"]


def test_all_candidates_are_ranked_by_how_long_they_waited() -> None:
    picker = RoundRobin(NoParameters(), context())
    picks(picker, FLEET, 2)
    assert names(picker.pick(request(), FLEET, [0.0] * len(FLEET))) == ["e2", "e3", "e0", "e1"]


def test_it_stays_fair_when_candidates_alternate() -> None:
    # A counter modulo the number of candidates would pick e0 or e1 forever here.
    picker = RoundRobin(NoParameters(), context())
    seen = Counter()
    for turn in range(60):
        seen.update(picks(picker, FLEET[:3] if turn % 2 else FLEET[:2]))
    assert max(seen.values()) - min(seen.values()) <= 20
    assert seen["e2"] >= 15


def test_one_that_comes_back_gets_one_turn_not_all_it_missed() -> None:
    picker = RoundRobin(NoParameters(), context())
    picks(picker, FLEET[:3], 3)
    picks(picker, FLEET[:2], 10)
    assert picks(picker, FLEET[:3], 4) == ["e2", "e0", "e1", "e2"]


def test_models_rotate_on_their_own() -> None:
    picker = RoundRobin(NoParameters(), context())
    other = Model(name="other")
    assert picks(picker, FLEET[:2]) == ["e0"]
    assert picks(picker, FLEET[:2], model=other) == ["e0"]
    assert picks(picker, FLEET[:2]) == ["e1"]


def test_names_that_are_gone_do_not_pile_up(monkeypatch) -> None:
    monkeypatch.setattr(round_robin, "REMEMBERED", 8)
    picker = RoundRobin(NoParameters(), context())
    for slot in range(100):
        picks(picker, [endpoint(slot)])
    assert len(picker._turns) <= 8


@given(st.lists(st.sets(st.integers(0, 3), min_size=1), min_size=1, max_size=60))
def test_nobody_waits_longer_than_the_others_have_turns(rounds) -> None:
    picker = RoundRobin(NoParameters(), context())
    waited = Counter()
    for candidates in rounds:
        (chosen,) = picks(picker, [FLEET[slot] for slot in sorted(candidates)])
        for slot in candidates:
            waited[f"e{slot}"] += 1
        waited[chosen] = 0
        assert max(waited.values()) < len(FLEET)
