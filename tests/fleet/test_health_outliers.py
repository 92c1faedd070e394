"""The share of an engine's answers that broke off, and how many engines may be out for it."""

from __future__ import annotations

from random import Random

import hypothesis.strategies as st
import pytest
from hypothesis import given

from gateway.core.clock import ManualClock
from gateway.fleet.health import BREAKS, CERTAIN, LAST, SHARE, WINDOW, Health, OutlierDetector, spared
from gateway.fleet.settings import HealthSettings
from tests.support.examples import examples

ENDED = st.lists(st.tuples(st.floats(0, WINDOW), st.booleans()), max_size=3 * LAST)


@given(ended=ENDED, under_way=st.integers(0, 3 * LAST))
@examples(300)
def test_the_share_is_that_of_the_window(ended, under_way):
    answers, now, told = OutlierDetector(), 0.0, []
    for pause, broken in ended:
        now += pause
        answers.ended.append((now, broken))
        told.append((now, broken))
    counted = [broken for at, broken in told[-LAST:] if at >= now - WINDOW]
    expected = sum(counted) >= BREAKS and sum(counted) >= SHARE * (len(counted) + min(under_way, LAST))
    assert answers.is_outlier(under_way) is expected
    answers.ended.clear()
    assert not answers.is_outlier(0)


@given(seed=st.integers(0, 10_000), every=st.integers(8, 20))
@examples(100)
def test_one_in_ten_that_breaks_is_no_outlier_however_they_are_told(seed, every):
    """A hundred at a time: what breaks is heard of before what ends well."""
    chance, answers = Random(seed), OutlierDetector()
    for burst in range(20):
        breaks = [number % every == 0 for number in range(LAST)]
        under_way = LAST
        for broken in sorted(breaks, reverse=True) if chance.random() < 0.5 else breaks:
            under_way -= 1
            answers.ended.append((float(burst), broken))
            assert not (broken and answers.is_outlier(under_way))


def test_an_engine_that_begins_to_break_all_is_found_at_once():
    answers = OutlierDetector()
    for _ in range(LAST):
        answers.ended.append((0.0, False))
    number = 0
    while not answers.is_outlier(0):
        answers.ended.append((0.0, True))
        number += 1
    assert number == LAST * SHARE
    busy = OutlierDetector()
    for _ in range(LAST):
        busy.ended.append((0.0, True))
    assert busy.is_outlier(10 * LAST), "however much it has been given"


def healths(reasons: list[str]) -> list[Health]:
    """Of engines that were up once, and then went out for these reasons, one second after the other; empty: they did
    not."""
    clock, made = ManualClock(), []
    for reason in reasons:
        clock.now += 1.0
        health = Health(HealthSettings(failures=1), clock, Random(0))
        health.record_success(clock.now)
        if reason:
            health.record_failure(reason)
        made.append(health)
    return made


@given(
    reasons=st.lists(st.sampled_from(["", "timeout", "broken-answers", "status-500", *sorted(CERTAIN)]), max_size=12)
)
@examples(200)
def test_at_most_half_of_those_that_can_be_reached_are_out(reasons):
    group = healths(reasons)
    used = spared([group])
    reachable = [health for health in group if health.reason not in CERTAIN]
    out = [health for health in reachable if not health.up and health not in used]
    assert used <= set(reachable)
    assert len(out) <= len(reachable) / 2
    assert len(out) == min(len(reachable) // 2, sum(not health.up for health in reachable)), "and no more than needed"
    assert all(one.since <= other.since for one in out for other in used), "who is out longest stays out"


def test_an_engine_is_spared_where_any_of_its_models_needs_it():
    one, two, three = healths(["timeout", "timeout", ""])
    assert spared([[one, three], [two, three]]) == set()
    assert spared([[one, two, three], [two]]) == {two}
    assert spared([]) == set()


@pytest.mark.parametrize("reason", sorted(CERTAIN))
def test_what_was_certain_stays_so_until_it_is_up(reason):
    clock = ManualClock()
    health = Health(HealthSettings(failures=1), clock, Random(0))
    assert not health.ejected, "it was never up"
    health.record_success(clock.now)
    health.record_failure("timeout")
    assert health.ejected
    health.record_failure(reason)
    assert not health.ejected
    health.record_failure("status-503")
    assert not health.ejected
    health.record_success(clock.now)
    health.record_failure("timeout")
    assert health.ejected
    assert health.record_refused()
    assert (health.ejected, health.reason) == (False, "refused")
