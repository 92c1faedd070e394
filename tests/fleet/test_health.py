from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.fleet.health import COLDEST, JITTER, MOST_BACKOFFS, Health
from gateway.fleet.settings import HealthSettings
from tests.support.examples import examples

SETTINGS = HealthSettings(failures=2, backoff=0.5, slow_start=10.0)


class Top(Random):
    """Draws the top of every range, so that pauses are exact."""

    def random(self) -> float:
        return 1.0


@pytest.fixture
def clock(manual_clock):
    return manual_clock()


@pytest.fixture
def health(clock):
    return Health(SETTINGS, clock, Top())


def test_it_begins_down_and_comes_up_warm(health, clock):
    assert (health.up, health.reason) == (False, "not-probed")
    assert health.record_success(clock.now) is True
    assert (health.up, health.reason, health.warmth()) == (True, "", 1.0)
    assert health.record_success(clock.now) is False


def test_failures_in_a_row_take_it_out(health, clock):
    health.record_success(clock.now)
    assert health.record_failure("timeout") is False
    assert health.record_success(clock.now) is False
    assert health.record_failure("timeout") is False
    assert health.up
    assert health.record_failure("timeout") is True
    assert (health.up, health.reason) == (False, "timeout")


@pytest.mark.parametrize("reason", ["refused", "unhealthy"])
def test_some_failures_need_no_second(health, clock, reason):
    health.record_success(clock.now)
    assert health.record_failure(reason) is True
    assert (health.up, health.reason) == (False, reason)


def test_a_refused_request_takes_it_out_once(health, clock):
    assert health.record_refused() is False
    health.record_success(clock.now)
    assert health.record_refused() is True
    assert health.record_refused() is False
    assert health.reason == "refused"
    assert health.pause(1.0) == 0.5


def test_the_reason_follows_what_is_seen(health, clock):
    health.record_success(clock.now)
    health.record_refused()
    assert health.record_failure("refused") is False
    assert health.record_failure("timeout") is True
    assert health.reason == "timeout"


def test_pauses_double_up_to_their_bound(health):
    pauses = []
    for _ in range(8):
        health.record_failure("refused")
        pauses.append(health.pause(1.0))
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 15.0, 15.0]


def test_pauses_have_jitter(clock):
    health = Health(SETTINGS, clock, Random(1))
    health.record_failure("refused")
    drawn = {health.pause(1.0) for _ in range(50)}
    assert len(drawn) == 50
    assert min(drawn) >= 0.5 * JITTER
    assert max(drawn) <= 0.5


def test_one_that_came_back_is_warmed_slowly(health, clock):
    health.record_success(clock.now)
    health.record_refused()
    clock.now += 1
    health.record_success(clock.now)
    assert health.warmth() == COLDEST
    clock.now += 5
    assert health.warmth() == 0.5
    clock.now += 5
    assert health.warmth() == 1.0


def test_without_slow_start_it_is_warm_at_once(clock):
    health = Health(HealthSettings(slow_start=0), clock, Random(1))
    health.record_success(clock.now)
    health.record_refused()
    clock.now += 1
    health.record_success(clock.now)
    assert health.warmth() == 1.0


def test_an_answer_from_before_it_went_down_does_not_bring_it_back(health, clock):
    health.record_success(clock.now)
    asked = clock.now
    clock.now += 0.5
    health.record_refused()
    clock.now += 0.5
    assert health.record_success(asked) is False
    assert not health.up
    assert health.record_success(clock.now) is True


def test_one_that_flaps_is_tried_less_and_less(health, clock):
    health.record_success(clock.now)
    for expected in (0.5, 1.0, 2.0):
        health.record_refused()
        assert health.pause(1.0) == expected
        clock.now += 1
        health.record_success(clock.now)
    clock.now += SETTINGS.slow_start
    health.record_success(clock.now)
    health.record_refused()
    assert health.pause(1.0) == 0.5


def test_one_that_rests_is_looked_at_every_interval(health, clock):
    health.record_success(clock.now)
    assert health.record_unavailable("asleep") is True
    assert (health.up, health.reason, health.pause(1.0)) == (False, "asleep", 1.0)
    assert health.record_unavailable("asleep") is False
    clock.now += 60
    assert health.record_success(clock.now) is True
    assert health.up


def test_broken_answers(health, clock):
    assert health.record_broken() is False
    health.record_success(clock.now)
    assert health.record_broken() is True
    assert health.reason == "broken-answers"


NEWS = st.one_of(
    st.tuples(st.just("record_success"), st.floats(0, 30)),
    st.tuples(st.just("record_failure"), st.sampled_from(["refused", "timeout", "garbage"])),
    st.tuples(st.sampled_from(["record_refused", "record_broken"])),
    st.tuples(st.just("record_unavailable"), st.just("asleep")),
    st.tuples(st.just("wait"), st.floats(0, 30)),
)


@given(news=st.lists(NEWS, max_size=80), seed=st.integers(0, 1000))
@examples(150)
def test_whatever_happens(manual_clock, news, seed):
    clock = manual_clock()
    health = Health(SETTINGS, clock, Random(seed))
    for name, *details in news:
        before = health.up, health.reason
        if name == "wait":
            clock.now += details[0]
        else:
            arguments = [clock.now - details[0]] if name == "record_success" else details
            assert getattr(health, name)(*arguments) is ((health.up, health.reason) != before)
        assert health.up == (health.reason == "")
        assert COLDEST <= health.warmth() <= 1
        assert 0 < health.pause(1.0) <= MOST_BACKOFFS * SETTINGS.backoff
        assert not (name in ("record_refused", "record_broken", "record_unavailable") and health.up)
    clock.now += 1
    health.record_success(clock.now)
    assert health.up
