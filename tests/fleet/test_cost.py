from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.fleet.cost import OVERHEAD_BOUND, SCALE_BOUND, FittedCost, Peers
from gateway.fleet.hardware import PROFILES, VALUES, Costs
from gateway.fleet.ledger import Ledger
from gateway.framework import EngineMetrics
from tests.support.examples import examples

BIG = Costs()  # 70B on four H100


def test_it_starts_from_the_profile():
    cost = FittedCost(BIG)
    # 12k tokens cold: 1.09 s by the published roofline of this profile.
    assert cost.prefill_seconds(12_288) == pytest.approx(1.09, rel=0.02)
    assert cost.step_seconds(0, 0) == 21e-3
    assert cost.step_seconds(10, 100_000) == pytest.approx(21e-3 + 792e-6 + 3.49e-3)
    assert cost.kv_token_seconds == 34.9e-9
    assert (cost.prefill_scale, cost.step_scale, cost.scalars.overhead) == (1, 1, 0)


def test_context_costs_attention():
    cost = FittedCost(BIG)
    assert cost.prefill_seconds(1000, 100_000) > cost.prefill_seconds(1000) * 2
    # Computing a prompt in two parts costs what computing it at once does.
    parts = cost.prefill_seconds(4000) + cost.prefill_seconds(6000, 4000)
    assert parts == pytest.approx(cost.prefill_seconds(10_000))


@pytest.mark.parametrize("scale", [1 / 40, 1 / 10, 0.4, 1, 3, 12, 40])
@pytest.mark.parametrize("overhead", [0.002, 0.03])
def test_prefill_is_learned_from_mixed_prompts(scale, overhead):
    cost, chance = FittedCost(BIG), Random(7)
    truth = FittedCost(BIG)
    for _ in range(30):
        tokens = chance.choice([30, 200, 900, 4000, 12_000])
        seconds = overhead + scale * truth.prefill_seconds(tokens)
        cost.learn_prefill(tokens, 0, seconds * chance.uniform(0.8, 1.25))
    for tokens in (900, 4000, 12_000):
        predicted = cost.scalars.overhead + cost.prefill_seconds(tokens)
        assert predicted == pytest.approx(overhead + scale * truth.prefill_seconds(tokens), rel=0.3)


@pytest.mark.parametrize("seconds", [0.004, 0.03, 0.5])
def test_prompts_of_one_length_teach_their_time(seconds):
    # 256 tokens each: 20 ms on the default profile. Tiny models on a CPU and slow ones alike.
    cost = FittedCost(BIG)
    cost.learn_prefill(256, 0, seconds)
    assert cost.scalars.overhead + cost.prefill_seconds(256) == pytest.approx(seconds, rel=0.5)
    for _ in range(10):
        cost.learn_prefill(256, 0, seconds)
    assert cost.scalars.overhead + cost.prefill_seconds(256) == pytest.approx(seconds, rel=0.15)


def test_outliers_hardly_matter():
    cost, chance = FittedCost(BIG), Random(3)
    cost.learn_prefill(1000, 0, 30.0)  # the first request waits for a compile
    for n in range(60):
        tokens = chance.randrange(200, 8000)
        seconds = FittedCost(BIG).prefill_seconds(tokens) * chance.uniform(0.9, 1.1)
        cost.learn_prefill(tokens, 0, seconds * 20 if n % 10 == 5 else seconds)
    assert cost.prefill_scale == pytest.approx(1, rel=0.35)


def test_one_impossibly_short_time_does_not_outweigh_all():
    cost = FittedCost(BIG)
    for _ in range(20):
        cost.learn_step(8, 10_000, 25e-3)
    before = cost.step_seconds(8, 10_000)
    cost.learn_step(8, 10_000, 1e-9)
    assert cost.step_seconds(8, 10_000) > before / 3


@pytest.mark.parametrize("step", [0.5e-3, 3e-3, 21e-3, 0.4])
def test_steps_are_learned(step):
    cost, chance = FittedCost(BIG), Random(5)
    for _ in range(12):
        cost.learn_step(chance.randrange(1, 30), chance.randrange(0, 50_000), step * chance.uniform(0.8, 1.25))
    assert cost.step_seconds(10, 20_000) == pytest.approx(step, rel=0.25)


def test_a_change_of_speed_is_followed():
    cost = FittedCost(BIG)
    for _ in range(200):
        cost.learn_step(4, 1000, 21e-3)
    for _ in range(60):
        cost.learn_step(4, 1000, 63e-3)
    assert cost.step_seconds(4, 1000) == pytest.approx(63e-3, rel=0.35)


def test_a_new_engine_believes_its_peers():
    peers = Peers()
    known = FittedCost(BIG, peers)
    for _ in range(10):
        known.learn_prefill(2000, 0, 2 * FittedCost(BIG).prefill_seconds(2000))
        known.learn_step(4, 1000, 84e-3)
    new = FittedCost(BIG, peers)
    assert new.prefill_seconds(2000) == pytest.approx(known.prefill_seconds(2000), rel=0.05)
    assert new.step_seconds(4, 1000) == pytest.approx(84e-3, rel=0.1)


def test_an_unlucky_engine_that_gets_nothing_is_like_its_peers_again():
    peers = Peers()
    lucky, other, unlucky = (FittedCost(BIG, peers) for _ in range(3))
    truth = FittedCost(BIG).prefill_seconds(2000)
    for _ in range(20):
        lucky.learn_prefill(2000, 0, truth)
        other.learn_prefill(2000, 0, truth)
        unlucky.learn_prefill(2000, 0, 20 * truth)
    assert unlucky.prefill_seconds(2000) > 5 * truth
    for _ in range(100):
        lucky.learn_prefill(2000, 0, truth)
        other.learn_prefill(2000, 0, truth)
    assert unlucky.prefill_seconds(2000) < 1.5 * truth


def test_requests_that_teach_nothing_make_what_was_seen_old():
    peers = Peers()
    lucky, unlucky = FittedCost(BIG, peers), FittedCost(BIG, peers)
    truth = FittedCost(BIG).prefill_seconds(2000)
    for _ in range(20):
        unlucky.learn_prefill(2000, 0, 20 * truth)
        lucky.learn_prefill(2000, 0, truth)
    assert unlucky.prefill_seconds(2000) > 5 * lucky.prefill_seconds(2000)
    for _ in range(200):
        lucky.learn_nothing()
    assert unlucky.prefill_seconds(2000) == pytest.approx(lucky.prefill_seconds(2000), rel=0.1)


def test_a_slower_engine_among_faster_ones_is_known_as_slower():
    peers, chance = Peers(), Random(11)
    fast, slow = [FittedCost(BIG, peers) for _ in range(3)], FittedCost(BIG, peers)
    truth = FittedCost(BIG).prefill_seconds(2000)
    for _ in range(60):
        for cost in fast:
            cost.learn_prefill(2000, 0, truth * chance.uniform(0.8, 1.25))
        slow.learn_prefill(2000, 0, 4 * truth * chance.uniform(0.8, 1.25))
    assert slow.prefill_seconds(2000) > 2 * max(cost.prefill_seconds(2000) for cost in fast)


def test_equal_engines_that_seem_to_differ_by_chance_are_believed_equal():
    """Who seems a tenth faster is sent all that is new. Believed by their counts alone, they are 21 % apart."""
    chance, apart = Random(11), []
    truth = FittedCost(BIG).prefill_seconds(2000)
    for _ in range(10):
        peers = Peers()
        engines = [FittedCost(BIG, peers) for _ in range(3)]
        for _ in range(100):
            for cost in engines:
                cost.learn_prefill(2000, 0, truth * chance.lognormvariate(0, 0.5))
            believed = [cost.prefill_scale for cost in engines]
            apart.append(max(believed) / min(believed) - 1)
    assert sum(apart) / len(apart) < 0.1


def test_engines_whose_times_hardly_vary_are_told_apart_by_little():
    peers, chance = Peers(), Random(11)
    fast, slow = FittedCost(BIG, peers), FittedCost(BIG, peers)
    truth = FittedCost(BIG).prefill_seconds(2000)
    for _ in range(60):
        fast.learn_prefill(2000, 0, truth * chance.uniform(0.98, 1.02))
        slow.learn_prefill(2000, 0, 1.3 * truth * chance.uniform(0.98, 1.02))
    assert slow.prefill_seconds(2000) > 1.15 * fast.prefill_seconds(2000)


def test_engines_that_are_gone_are_no_peers():
    peers = Peers()
    engines = [FittedCost(BIG, peers) for _ in range(3)]
    assert peers.count == 3
    del engines[1:]
    assert peers.count == 1


def test_without_fit_nothing_is_learned():
    cost = FittedCost(Costs(fit=False))
    cost.learn_prefill(1000, 0, 5)
    cost.learn_step(4, 100, 5)
    assert (cost.prefill_scale, cost.step_scale) == (1, 1)


ANYTHING = st.one_of(st.floats(allow_nan=True, allow_infinity=True), st.floats(1e-6, 1e3))


@given(
    seen=st.lists(
        st.tuples(st.booleans(), st.integers(-10, 2_000_000), st.integers(-10, 2_000_000), ANYTHING), max_size=40
    )
)
@examples(150)
def test_whatever_is_seen_stays_within_bounds(seen):
    cost = FittedCost(BIG)
    for prefill, first, second, seconds in seen:
        (cost.learn_prefill if prefill else cost.learn_step)(first, second, seconds)
    bounds = (1 / SCALE_BOUND, SCALE_BOUND)
    assert bounds[0] <= cost.prefill_scale <= bounds[1]
    assert bounds[0] <= cost.step_scale <= bounds[1]
    assert 0 <= cost.scalars.overhead <= OVERHEAD_BOUND
    assert cost.prefill_seconds(0) == 0
    assert cost.prefill_seconds(-5, -5) == 0
    assert cost.step_seconds(-1, -1) > 0


def test_ttft_counts_the_queue_and_what_runs(manual_clock):
    clock = manual_clock()
    cost, ledger = FittedCost(BIG), Ledger(clock)
    assert cost.ttft(ledger, 1000) == pytest.approx(cost.prefill_seconds(1000))
    ledger.reserve(5000, 5000)
    queued = cost.ttft(ledger, 1000, 200)
    assert queued == pytest.approx(
        cost.prefill_seconds(5000) + cost.prefill_seconds(1000, 200) + cost.step_seconds(1, 5000)
    )
    ledger.scraped(EngineMetrics(running=11, kv_usage=0.5, kv_capacity=100_000), clock.now)
    assert cost.ttft(ledger, 1000, 200) > queued


@given(
    seen=st.lists(st.tuples(st.booleans(), st.integers(0, 2), st.integers(1, 50_000), ANYTHING), max_size=40),
    ask=st.lists(st.booleans(), min_size=40, max_size=40),
)
@examples(150)
def test_the_scalars_are_the_model_whenever_they_are_asked_for(seen, ask):
    """They are kept between two observations; those of the peers count within one turn."""
    peers = Peers()
    asked, never_asked_before = FittedCost(BIG, peers), FittedCost(BIG)
    others = [asked, FittedCost(BIG, peers), FittedCost(BIG, peers)]
    for (prefill, who, size, seconds), now in zip(seen, ask, strict=False):
        (others[who].learn_prefill if prefill else others[who].learn_step)(size, 0, seconds)
        if who == 0:
            (never_asked_before.learn_prefill if prefill else never_asked_before.learn_step)(size, 0, seconds)
        if now:
            assert asked.scalars is asked.scalars
    scalars = asked.scalars
    assert asked.prefill_seconds(3000, 500) == pytest.approx(
        3000 * scalars.prefill_token + 3000 * scalars.prefill_quadratic * (500 + 1500)
    )
    assert asked.step_seconds(7, 9000) == pytest.approx(
        scalars.step + 7 * scalars.step_request + 9000 * scalars.kv_token
    )
    alone = never_asked_before
    assert alone.scalars.prefill_token == pytest.approx(alone.prefill_scale * BIG.prefill_token)
    assert alone.scalars.step == pytest.approx(alone.step_scale * BIG.step)


def test_scalars_follow_the_peers():
    peers = Peers()
    idle, busy = FittedCost(BIG, peers), FittedCost(BIG, peers)
    before = idle.scalars.prefill_token
    for _ in range(10):
        busy.learn_prefill(4000, 0, 10 * BIG.prefill_token * 4000)
    assert idle.scalars.prefill_token > 4 * before


def test_other_starting_values_begin_anew_and_disturb_nobody():
    peers = Peers()
    changed, other = FittedCost(BIG, peers), FittedCost(BIG, peers)
    for _ in range(30):
        changed.learn_prefill(4000, 0, 5 * BIG.prefill_token * 4000)
        changed.learn_step(4, 1000, 5 * BIG.step)
    believed = other.prefill_scale, other.step_scale
    assert min(believed) > 2
    small, others = PROFILES["8b-h100"], Peers()
    changed.restart(small, others)
    assert changed.scalars == (*(getattr(small, value) for value in VALUES), 0.0)
    assert (peers.count, others.count) == (1, 1)
    # What the other believes was seen of the values that it still has.
    other.learn_nothing()
    assert (other.prefill_scale, other.step_scale) == pytest.approx(believed, rel=0.01)
    changed.learn_prefill(4000, 0, small.prefill_token * 4000)
    learned = changed.scalars
    changed.restart(small, others)
    assert changed.scalars is learned
    del changed
    assert others.count == 0


def test_other_peers_leave_what_was_seen_here():
    one, other = Peers(), Peers()
    cost = FittedCost(BIG, one)
    for _ in range(30):
        cost.learn_prefill(4000, 0, 5 * FittedCost(BIG).prefill_seconds(4000))
    cost.restart(BIG, other)
    assert (one.count, other.count) == (0, 1)
    assert 3 < cost.prefill_scale < 5
    cost.learn_prefill(4000, 0, FittedCost(BIG).prefill_seconds(4000))
    assert (one.prefill.seen, other.prefill.seen) == (30, 1)


def test_what_is_not_fitted_has_no_peers():
    peers = Peers()
    given, fitted = FittedCost(Costs(fit=False), peers), FittedCost(BIG, peers)
    for _ in range(40):
        fitted.learn_prefill(4000, 0, 5 * BIG.prefill_token * 4000)
        fitted.learn_step(4, 1000, 5 * BIG.step)
    assert peers.count == 1
    assert (given.prefill_scale, given.step_scale, given.scalars.overhead) == (1, 1, 0)
    assert given.prefill_seconds(4000) == FittedCost(BIG).prefill_seconds(4000)
    fitted.restart(Costs(fit=False), peers)
    assert (fitted.prefill_scale, fitted.step_scale, fitted.scalars.overhead) == (1, 1, 0)
    assert peers.count == 0


@pytest.mark.parametrize(("prefill", "step"), [(1, 1), (0.4, 0.4), (5, 5), (3, 0.5), (0.5, 3)])
def test_whole_answers_teach_both_lines_where_they_are_of_unlike_lengths(prefill, step):
    cost, chance, truth = FittedCost(BIG), Random(13), FittedCost(BIG)
    for _ in range(400):
        tokens, steps = chance.choice([100, 2000, 20_000]), chance.choice([5, 50, 500])
        seconds = prefill * truth.prefill_seconds(tokens) + steps * step * truth.step_seconds(4, 1000)
        cost.learn_whole(tokens, 0, 4, 1000, steps, seconds * chance.uniform(0.8, 1.25))
    assert cost.prefill_seconds(20_000) == pytest.approx(prefill * truth.prefill_seconds(20_000), rel=0.35)
    assert cost.step_seconds(4, 1000) == pytest.approx(step * truth.step_seconds(4, 1000), rel=0.35)


def test_a_part_of_an_observation_counts_as_that():
    """Answers that are nearly all decode say hardly anything of prefill."""
    cost = FittedCost(BIG)
    for _ in range(20):
        cost.learn_whole(1, 0, 1, 100, 1000, 10 * 1000 * BIG.step)
    assert cost.step_scale == pytest.approx(10, rel=0.1)
    assert cost.prefill_scale < 2


@given(st.lists(st.tuples(*[st.integers(-5, 10**6)] * 4, st.floats(-1, 1e4), ANYTHING), max_size=30))
@examples(100)
def test_whatever_whole_answers_say_stays_within_bounds(seen):
    cost = FittedCost(BIG)
    for tokens, context, running, kv, steps, seconds in seen:
        cost.learn_whole(tokens, context, running, kv, steps, seconds, ahead=context, ahead_attention=kv)
    for scale in (cost.prefill_scale, cost.step_scale):
        assert 1 / SCALE_BOUND <= scale <= SCALE_BOUND
    assert 0 <= cost.scalars.overhead <= OVERHEAD_BOUND


def test_what_was_queued_is_no_part_of_the_own_prompt_s_cost():
    cost, truth = FittedCost(BIG), FittedCost(BIG)
    for _ in range(20):
        queue = sum(truth.prefill_seconds(10_000) for _ in range(3))
        cost.learn_prefill(
            500, 4000, queue + truth.prefill_seconds(500, 4000), ahead=30_000, ahead_attention=3 * 10_000 * 5000
        )
    assert cost.prefill_scale == pytest.approx(1, rel=0.02)
