"""Covers: gateway/fleet/load/cost.py, gateway/fleet/load/fit.py."""

from __future__ import annotations

from dataclasses import astuple
from itertools import count
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.fleet.load.cost import FittedCost
from gateway.fleet.load.fit import OVERHEAD_BOUND, SCALE_BOUND, PeerGroup
from gateway.fleet.load.hardware import PROFILES
from gateway.fleet.settings import StartingCosts
from gateway.framework import NO_MATCH
from tests.support.examples import examples

BIG = StartingCosts()  # 70B on four H100
TIMES = count(1.0)
"""Seconds: each request comes one after the one before."""


def test_it_starts_from_the_profile():
    cost = FittedCost(BIG)
    # 12k tokens cold: 1.09 s by the published roofline of this profile.
    assert cost.scalars.prefill_seconds(12_288) == pytest.approx(1.09, rel=0.02)
    assert cost.scalars.step_seconds(0, 0) == 21e-3
    assert cost.scalars.step_seconds(10, 100_000) == pytest.approx(21e-3 + 792e-6 + 3.49e-3)
    assert cost.scalars.kv_token == 34.9e-9
    assert (cost.prefill_scale, cost.step_scale, cost.scalars.overhead) == (1, 1, 0)


def test_context_costs_attention():
    cost = FittedCost(BIG)
    assert cost.scalars.prefill_seconds(1000, 100_000) > cost.scalars.prefill_seconds(1000) * 2
    # Computing a prompt in two parts costs what computing it at once does.
    parts = cost.scalars.prefill_seconds(4000) + cost.scalars.prefill_seconds(6000, 4000)
    assert parts == pytest.approx(cost.scalars.prefill_seconds(10_000))


@pytest.mark.parametrize("scale", [1 / 40, 1 / 10, 0.4, 1, 3, 12, 40])
@pytest.mark.parametrize("overhead", [0.002, 0.03])
def test_prefill_is_learned_from_mixed_prompts(scale, overhead):
    cost, chance = FittedCost(BIG), Random(7)
    truth = FittedCost(BIG)
    for _ in range(30):
        tokens = chance.choice([30, 200, 900, 4000, 12_000])
        seconds = overhead + scale * truth.scalars.prefill_seconds(tokens)
        cost.learn_prefill(tokens, 0, seconds * chance.uniform(0.8, 1.25), at=next(TIMES))
    for tokens in (900, 4000, 12_000):
        predicted = cost.scalars.overhead + cost.scalars.prefill_seconds(tokens)
        assert predicted == pytest.approx(overhead + scale * truth.scalars.prefill_seconds(tokens), rel=0.3)


@pytest.mark.parametrize("seconds", [0.004, 0.03, 0.5])
def test_prompts_of_one_length_teach_their_time(seconds):
    # 256 tokens each: 20 ms on the default profile. Tiny models on a CPU and slow ones alike.
    cost = FittedCost(BIG)
    cost.learn_prefill(256, 0, seconds, at=next(TIMES))
    assert cost.scalars.overhead + cost.scalars.prefill_seconds(256) == pytest.approx(seconds, rel=0.5)
    for _ in range(10):
        cost.learn_prefill(256, 0, seconds, at=next(TIMES))
    assert cost.scalars.overhead + cost.scalars.prefill_seconds(256) == pytest.approx(seconds, rel=0.15)


def test_outliers_hardly_matter():
    cost, chance = FittedCost(BIG), Random(3)
    cost.learn_prefill(1000, 0, 30.0, at=next(TIMES))  # the first request waits for a compile
    for n in range(60):
        tokens = chance.randrange(200, 8000)
        seconds = FittedCost(BIG).scalars.prefill_seconds(tokens) * chance.uniform(0.9, 1.1)
        cost.learn_prefill(tokens, 0, seconds * 20 if n % 10 == 5 else seconds, at=next(TIMES))
    assert cost.prefill_scale == pytest.approx(1, rel=0.35)


def test_one_impossibly_short_time_does_not_outweigh_all():
    cost = FittedCost(BIG)
    for _ in range(20):
        cost.learn_step(8, 10_000, 25e-3, at=next(TIMES))
    before = cost.scalars.step_seconds(8, 10_000)
    cost.learn_step(8, 10_000, 1e-9, at=next(TIMES))
    assert cost.scalars.step_seconds(8, 10_000) > before / 3


@pytest.mark.parametrize("step", [0.5e-3, 3e-3, 21e-3, 0.4])
def test_steps_are_learned(step):
    cost, chance = FittedCost(BIG), Random(5)
    for _ in range(12):
        cost.learn_step(
            chance.randrange(1, 30), chance.randrange(0, 50_000), step * chance.uniform(0.8, 1.25), at=next(TIMES)
        )
    assert cost.scalars.step_seconds(10, 20_000) == pytest.approx(step, rel=0.25)


def test_a_change_of_speed_is_followed():
    cost = FittedCost(BIG)
    for seconds in (*(21e-3,) * 200, *(63e-3,) * 60):
        cost.learn_step(4, 1000, seconds, at=next(TIMES))
        cost.count_request()
    assert cost.scalars.step_seconds(4, 1000) == pytest.approx(63e-3, rel=0.35)


def taught(cost, factor, chance=None, spread=0.0, tokens=2000, at=None):
    """``cost`` sees a prompt that takes ``factor`` times what the starting values say, give or take."""
    noise = chance.lognormvariate(0, spread) if chance is not None else 1.0
    cost.learn_prefill(
        tokens,
        0,
        factor * FittedCost(BIG).scalars.prefill_seconds(tokens) * noise,
        at=next(TIMES) if at is None else at,
    )
    cost.count_request()


def test_a_new_engine_believes_its_peers():
    peers = PeerGroup()
    known = FittedCost(BIG, peers)
    for _ in range(10):
        known.learn_step(4, 1000, 84e-3, at=next(TIMES))
        taught(known, 2)
    new = FittedCost(BIG, peers)
    assert new.scalars == known.scalars
    assert new.prefill_scale == pytest.approx(2, rel=0.1)
    assert new.scalars.step_seconds(4, 1000) == pytest.approx(84e-3, rel=0.1)


def test_first_requests_that_are_slow_by_chance_are_not_believed():
    """Of three equal engines one had its first three prompts take four times as long, and got nothing new any more."""
    peers, chance = PeerGroup(), Random(5)
    unlucky, *others = engines = [FittedCost(BIG, peers) for _ in range(3)]
    for number in range(40):
        for cost in engines:
            taught(cost, 4 if cost is unlucky and number < 3 else 1, chance, 0.3)
            assert unlucky.prefill_scale == pytest.approx(others[0].prefill_scale, rel=0.05)


@pytest.mark.parametrize("seed", range(4))
def test_equal_engines_are_believed_equal_whatever_chance_does(seed):
    """Times with a spread of a half, and bursts in which one engine's neighbour is busy."""
    chance, apart = Random(seed), []
    peers = PeerGroup()
    engines = [FittedCost(BIG, peers) for _ in range(8)]
    busy, left = 0, 0
    for _ in range(400):
        if not left:
            busy, left = chance.randrange(8), chance.randrange(4, 20)
        left -= 1
        for number, cost in enumerate(engines):
            taught(cost, 2 if number == busy else 1, chance, 0.5)
        believed = [cost.prefill_scale for cost in engines]
        apart.append(max(believed) / min(believed) - 1)
    assert sum(apart) / len(apart) < 0.1


@pytest.mark.parametrize("seed", range(4))
def test_equal_engines_whose_times_only_scatter_are_believed_equal(seed):
    chance, apart = Random(seed), []
    peers = PeerGroup()
    engines = [FittedCost(BIG, peers) for _ in range(8)]
    for _ in range(400):
        for cost in engines:
            taught(cost, 1, chance, 0.5)
        believed = [cost.prefill_scale for cost in engines]
        apart.append(max(believed) / min(believed) - 1)
    assert sum(apart) / len(apart) < 0.005


@pytest.mark.parametrize("seed", range(4))
def test_a_neighbour_that_is_busy_for_seconds_is_no_slow_engine(seed):
    """Three equal engines with ten requests a second each; by turns one of them is two thirds slower for some seconds,
    as on a machine with fewer cores than engines."""
    chance, apart = Random(seed), []
    peers = PeerGroup()
    engines = [FittedCost(BIG, peers) for _ in range(3)]
    busy, left = 0, 0
    for turn in range(400):
        if not left:
            busy, left = chance.randrange(3), chance.randrange(10, 50)
        left -= 1
        for number, cost in enumerate(engines):
            taught(cost, 1.7 if number == busy else 1, chance, 0.4, at=turn / 10)
        believed = [cost.prefill_scale for cost in engines]
        apart.append(max(believed) / min(believed) - 1)
    assert max(apart) < 0.2


@pytest.mark.parametrize("slower", [2, 4])
def test_other_hardware_among_them_is_found_within_some_hundred_requests(slower):
    peers, chance = PeerGroup(), Random(11)
    fast, slow = [FittedCost(BIG, peers) for _ in range(4)], [FittedCost(BIG, peers) for _ in range(4)]

    def serve(rounds):
        for _ in range(rounds):
            for cost in (*fast, *slow):
                taught(cost, slower if cost in slow else 1, chance, 0.3)
                cost.learn_step(
                    4, 1000, (slower if cost in slow else 1) * 21e-3 * chance.lognormvariate(0, 0.3), at=next(TIMES)
                )

    serve(60)
    for scale in ("prefill_scale", "step_scale"):
        believed = min(getattr(cost, scale) for cost in slow) / max(getattr(cost, scale) for cost in fast)
        assert believed > 1 + 0.25 * (slower - 1)
    serve(100)
    for scale in ("prefill_scale", "step_scale"):
        believed = min(getattr(cost, scale) for cost in slow) / max(getattr(cost, scale) for cost in fast)
        assert believed == pytest.approx(slower, rel=0.3)


def test_declared_hardware_is_known_at_once_and_is_one_line_with_the_rest():
    peers = PeerGroup()
    small = PROFILES["8b-h100"]
    big, other = FittedCost(BIG, peers), FittedCost(small, peers)
    assert other.scalars.prefill_token == small.prefill_token
    for _ in range(30):
        taught(big, 2)
    assert other.prefill_scale == pytest.approx(big.prefill_scale)
    assert big.prefill_scale == pytest.approx(2, rel=0.1)


def test_who_gets_no_requests_is_like_its_peers_again():
    peers, chance = PeerGroup(), Random(2)
    slow, *others = engines = [FittedCost(BIG, peers) for _ in range(3)]
    for _ in range(60):
        for cost in engines:
            taught(cost, 4 if cost is slow else 1, chance, 0.2)
    assert slow.prefill_scale > 2 * others[0].prefill_scale
    for _ in range(150):
        for cost in others:
            taught(cost, 1, chance, 0.2)
    assert slow.prefill_scale == pytest.approx(others[0].prefill_scale, rel=0.1)


def test_a_process_that_was_started_again_is_like_its_peers():
    peers = PeerGroup()
    changed, other = FittedCost(BIG, peers), FittedCost(BIG, peers)
    for _ in range(60):
        taught(changed, 4)
        taught(other, 1)
    assert changed.prefill_scale > 2 * other.prefill_scale
    changed.reset()
    assert changed.prefill_scale == pytest.approx(peers.shared.prefill)


def test_observations_that_wait_teach_what_they_would_have_taught_at_once():
    chance = Random(5)
    shown = []
    for at_once in (True, False):
        chance.seed(5)
        peers = PeerGroup()
        costs = [FittedCost(BIG, peers) for _ in range(3)]
        shown.append(scalars := [])
        for number in range(400):
            cost = chance.choice(costs)
            seconds = chance.uniform(0.02, 0.4)
            if number % 3:
                cost.learn_prefill(chance.choice([200, 4000]), 0, seconds, at=float(number), running=2, kv_tokens=900)
            elif number % 2:
                cost.learn_step(chance.randint(1, 20), 5000, seconds / 10, at=float(number))
            else:
                cost.learn_whole(900, 64, 3, 5000, 50, 5 * seconds, at=float(number))
            if at_once:
                peers.learn()
            cost.count_request()
            if number == 300:
                costs[1].reset()
            scalars.append([one.scalars for one in costs])
    assert shown[0] == shown[1]
    assert len({each[0] for each in shown[0]}) > 50


def test_what_waited_for_others_says_little():
    peers = PeerGroup()
    waits, other = FittedCost(BIG, peers), FittedCost(BIG, peers)
    for _ in range(100):
        taught(other, 1)
        queue = 100_000 * BIG.prefill_token
        waits.learn_prefill(100, 0, 4 * queue, ahead=(100_000, 0.0), at=next(TIMES))
        waits.count_request()
    assert waits.prefill_scale == other.prefill_scale


def test_what_the_batch_adds_is_not_the_prompt_s():
    cost, chance = FittedCost(BIG), Random(3)
    for _ in range(40):
        tokens, running = chance.randrange(100, 4000), chance.randrange(1, 60)
        first = cost.scalars.first_token((running, 0, 0.0, 0.0, 1000.0 * running, 0.0), NO_MATCH, tokens)
        cost.learn_prefill(
            tokens, 0, first.prefill + first.batch, running=running, kv_tokens=1000.0 * running, at=next(TIMES)
        )
    assert cost.prefill_scale == pytest.approx(1, rel=0.02)
    assert cost.scalars.overhead < 1e-3


def test_engines_that_are_gone_are_no_peers():
    peers = PeerGroup()
    engines = [FittedCost(BIG, peers) for _ in range(3)]
    assert peers.count == 3
    del engines[1:]
    assert peers.count == 1


def test_without_fit_nothing_is_learned():
    cost = FittedCost(StartingCosts(fit=False))
    cost.learn_prefill(1000, 0, 5, at=next(TIMES))
    cost.learn_step(4, 100, 5, at=next(TIMES))
    assert (cost.prefill_scale, cost.step_scale) == (1, 1)


ANYTHING = st.one_of(st.floats(allow_nan=True, allow_infinity=True), st.floats(1e-6, 1e3))


@given(
    seen=st.lists(
        st.tuples(st.booleans(), st.integers(-10, 2_000_000), st.integers(-10, 2_000_000), ANYTHING), max_size=40
    )
)
@example([(True, 24988, 0, 5e-324)])  # by what is expected, it is 0
@examples(150)
def test_whatever_is_seen_stays_within_bounds(seen):
    cost = FittedCost(BIG)
    for prefill, first, second, seconds in seen:
        (cost.learn_prefill if prefill else cost.learn_step)(first, second, seconds, at=next(TIMES))
    bounds = (1 / SCALE_BOUND, SCALE_BOUND)
    assert bounds[0] <= cost.prefill_scale <= bounds[1]
    assert bounds[0] <= cost.step_scale <= bounds[1]
    assert 0 <= cost.scalars.overhead <= OVERHEAD_BOUND
    assert cost.scalars.prefill_seconds(0) == 0
    assert cost.scalars.prefill_seconds(-5, -5) == 0
    assert cost.scalars.step_seconds(-1, -1) > 0


@given(
    seen=st.lists(st.tuples(st.booleans(), st.integers(0, 2), st.integers(1, 50_000), ANYTHING), max_size=40),
    ask=st.lists(st.booleans(), min_size=40, max_size=40),
)
@examples(150)
def test_the_scalars_are_kept_until_something_is_learned(seen, ask):
    """What the peers have seen counts within one turn."""
    peers = PeerGroup()
    asked = FittedCost(BIG, peers)
    others = [asked, FittedCost(BIG, peers), FittedCost(BIG, peers)]
    for (prefill, who, size, seconds), now in zip(seen, ask, strict=False):
        (others[who].learn_prefill if prefill else others[who].learn_step)(size, 0, seconds, at=next(TIMES))
        others[who].count_request()
        if now:
            assert asked.scalars is asked.scalars
    for _ in range(3):
        others[1].count_request()
    scalars = asked.scalars
    assert scalars is asked.scalars
    assert scalars.prefill_token == pytest.approx(asked.prefill_scale * BIG.prefill_token)
    assert scalars.step == pytest.approx(asked.step_scale * BIG.step)
    assert scalars.overhead == peers.prefill.overhead
    assert (scalars.cpu_fetch, scalars.storage_fetch) == (BIG.cpu_fetch, BIG.storage_fetch)


def test_other_starting_values_begin_anew_and_disturb_nobody():
    peers = PeerGroup()
    changed, other = FittedCost(BIG, peers), FittedCost(BIG, peers)
    for _ in range(60):
        taught(changed, 4)
        taught(other, 1)
    believed = other.prefill_scale
    small = PROFILES["8b-h100"]
    changed.reconfigure(small, peers)
    assert changed.prefill_scale == pytest.approx(peers.shared.prefill)
    assert other.prefill_scale == believed
    learned = changed.scalars
    changed.reconfigure(small, peers)
    assert changed.scalars == learned
    assert peers.count == 2
    changed.reconfigure(small, PeerGroup())
    assert peers.count == 1
    assert changed.scalars == (
        *astuple(small)[:5],
        0.0,
        *astuple(small)[5:8],
    )


def test_what_is_not_fitted_has_no_peers():
    peers = PeerGroup()
    given, fitted = FittedCost(StartingCosts(fit=False), peers), FittedCost(BIG, peers)
    for _ in range(40):
        fitted.learn_step(4, 1000, 5 * BIG.step, at=next(TIMES))
        taught(fitted, 5)
    assert peers.count == 1
    assert (given.prefill_scale, given.step_scale, given.scalars.overhead) == (1, 1, 0)
    fitted.reconfigure(StartingCosts(fit=False), peers)
    assert (fitted.prefill_scale, fitted.step_scale, fitted.scalars.overhead) == (1, 1, 0)
    assert peers.count == 0


@pytest.mark.parametrize(("prefill", "step"), [(1, 1), (0.4, 0.4), (5, 5), (3, 0.5), (0.5, 3)])
def test_whole_answers_teach_both_lines_where_they_are_of_unlike_lengths(prefill, step):
    cost, chance, truth = FittedCost(BIG), Random(13), FittedCost(BIG)
    for _ in range(400):
        tokens, steps = chance.choice([100, 2000, 20_000]), chance.choice([5, 50, 500])
        seconds = prefill * truth.scalars.prefill_seconds(tokens) + steps * step * truth.scalars.step_seconds(4, 1000)
        cost.learn_whole(tokens, 0, 4, 1000, steps, seconds * chance.uniform(0.8, 1.25), at=next(TIMES))
        cost.count_request()
    assert cost.scalars.prefill_seconds(20_000) == pytest.approx(
        prefill * truth.scalars.prefill_seconds(20_000), rel=0.35
    )
    assert cost.scalars.step_seconds(4, 1000) == pytest.approx(step * truth.scalars.step_seconds(4, 1000), rel=0.35)


def test_a_part_of_an_observation_counts_as_that():
    """Answers that are nearly all decode say hardly anything of prefill."""
    cost = FittedCost(BIG)
    for _ in range(20):
        cost.learn_whole(1, 0, 1, 100, 1000, 10 * 1000 * BIG.step, at=next(TIMES))
    assert cost.step_scale == pytest.approx(10, rel=0.1)
    assert cost.prefill_scale < 2


@given(st.lists(st.tuples(*[st.integers(-5, 10**6)] * 4, st.floats(-1, 1e4), ANYTHING), max_size=30))
@examples(100)
def test_whatever_whole_answers_say_stays_within_bounds(seen):
    cost = FittedCost(BIG)
    for tokens, context, running, kv, steps, seconds in seen:
        cost.learn_whole(tokens, context, running, kv, steps, seconds, ahead=(context, kv), at=next(TIMES))
    for scale in (cost.prefill_scale, cost.step_scale):
        assert 1 / SCALE_BOUND <= scale <= SCALE_BOUND
    assert 0 <= cost.scalars.overhead <= OVERHEAD_BOUND


def test_what_was_queued_is_no_part_of_the_own_prompt_s_cost():
    cost, truth = FittedCost(BIG), FittedCost(BIG)
    for _ in range(20):
        queue = sum(truth.scalars.prefill_seconds(10_000) for _ in range(3))
        cost.learn_prefill(
            500,
            4000,
            queue + truth.scalars.prefill_seconds(500, 4000),
            at=next(TIMES),
            ahead=(30_000, 3 * 10_000 * 5000),
        )
    assert cost.prefill_scale == pytest.approx(1, rel=0.02)
