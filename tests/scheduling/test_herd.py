"""Among several deciders: how many candidates are left, which, and that they do not all choose the same."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from gateway.framework.match import Match
from gateway.scheduling.herd import HerdGuard, holders
from gateway.scheduling.profile import Profile, run_profile
from gateway.scheduling.rehearsal import rehearsal
from gateway.scheduling.scheduler import Scheduler
from gateway.scheduling.trace import Trace
from tests.support.candidates import Notes, endpoint, request

ENDPOINTS = tuple(endpoint(slot) for slot in range(64))


def guard(unseen: float, seed: int = 1) -> HerdGuard:
    return HerdGuard(lambda: unseen, random.Random(seed))


def holding(**tokens: int):
    asked = request()
    asked.matches = {int(slot[1:]): Match(gpu=held, expected_hit=held) for slot, held in tokens.items()}
    return asked


def test_who_misses_nothing_chooses_from_all():
    assert guard(0.0).narrow(request(), ENDPOINTS) is ENDPOINTS
    assert guard(0.05).narrow(request(), ENDPOINTS) is ENDPOINTS


@pytest.mark.parametrize(("unseen", "left"), [(1.0, 32), (7.0, 8), (100.0, 2), (1e9, 2)])
def test_the_more_is_missing_the_fewer_are_left(unseen, left):
    kept = guard(unseen).narrow(request(), ENDPOINTS)
    assert len(kept) == left
    assert list(kept) == sorted(kept, key=ENDPOINTS.index)


def test_who_holds_most_of_the_prompt_is_always_left():
    asked = holding(_5=100, _9=100, _11=50)
    assert holders(asked, ENDPOINTS) == {ENDPOINTS[5], ENDPOINTS[9]}
    for seed in range(20):
        kept = guard(100.0, seed).narrow(asked, ENDPOINTS)
        assert {ENDPOINTS[5], ENDPOINTS[9]} <= set(kept)
        assert len(kept) == 4


def test_few_candidates_stay():
    assert guard(1e9).narrow(request(), ENDPOINTS[:2]) == ENDPOINTS[:2]
    assert guard(1e9).narrow(holding(_0=5), ENDPOINTS[:3]) == ENDPOINTS[:3]


class Advice:
    compares_load = True

    def __init__(self, compares_load: bool = True) -> None:
        self.compares_load = compares_load

    def score(self, request, endpoints, /):
        return [0.0 if one.slot else 1.0 for one in endpoints]


class Best:
    def pick(self, request, endpoints, scores, /):
        return [max(zip(scores, endpoints, strict=True), key=lambda pair: pair[0])[1]]


def test_deciders_with_the_same_old_picture_choose_different_endpoints():
    profile = Profile("p", (), [("load", Advice(), 1.0)], ("best", Best()))
    chosen = Counter(
        run_profile({"p": profile}, request(), Notes(), None, "p", ENDPOINTS, guard(50.0, seed))[0].slot
        for seed in range(100)
    )
    assert chosen[0] < 20


def test_a_profile_with_other_wishes_is_not_guarded():
    profile = Profile("p", (), [("load", Advice(), 1.0), ("session", Advice(False), 1.0)], ("best", Best()))
    for seed in range(10):
        assert run_profile({"p": profile}, request(), Notes(), None, "p", ENDPOINTS, guard(50.0, seed))[0].slot == 0


def test_it_is_seen_who_was_not_a_candidate():
    profile, trace = Profile("p", (), [("load", Advice(), 1.0)], ("best", Best())), Trace({})
    [best] = run_profile({"p": profile}, request(), Notes(), trace, "p", ENDPOINTS, guard(50.0))
    [run] = trace.runs
    [(name, removed)] = run.removed
    assert (name, len(removed)) == ("herd-guard", 62)
    assert run.picked == best.name
    assert best.name in run.scores()


def test_who_asks_what_would_be_chosen_is_guarded_too():
    scheduler = Scheduler({}, {}, Notes(), guard(50.0))
    assert rehearsal(scheduler).guard is not None
