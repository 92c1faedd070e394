from __future__ import annotations

from math import e, exp
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.clock import ManualClock
from gateway.fleet.load.ledger import GAUGE_LAG, SPARE_EXPIRIES, Ledger
from gateway.fleet.settings import STEP_TOKENS
from gateway.framework import Scalars
from gateway.framework.cost import LATELY
from gateway.framework.fleet import EngineMetrics
from gateway.framework.match import Match
from tests.support.examples import examples
from tests.support.ledgers import reserve


def done(ledger: Ledger, clock: ManualClock) -> float:
    """Estimated seconds of the queued prefill that are done."""
    return ledger.sums(clock.now)[3]


PRICES = [Scalars(1e-4 * n, 1e-9 * n, 0.02, 0.001 * n, 1e-7, 0.01, 1e-6, 1e-5, 2048 * n) for n in (1, 2)]


def check_rates(ledger: Ledger, now: float, scalars: Scalars) -> None:
    """What a scorer reads of the ledger is what its sums and the cost model say."""
    rates = ledger.rates if now < ledger.rates.until else ledger.rates_at(now)
    sums, match, prompt, new = ledger.sums(now), Match(gpu=160, expected_hit=160), 1000, 840
    assert (rates.running, rates.waiting) == (sums[0], sums[1])
    assert rates.share * exp((rates.share_at - now) / LATELY) == sums[5]
    waited = max(0.0, rates.queued - min((now - rates.begun) * rates.pace, rates.most_done))
    each = rates.new_token + rates.prefill_token + rates.prefill_quadratic * (prompt - new / 2)
    first = scalars.first_token(sums, match, prompt)
    assert rates.fixed + waited + new * each == pytest.approx(first.seconds, rel=1e-9)
    assert rates.output_token == pytest.approx(scalars.step_seconds(sums[0], sums[4]))


ACTIONS = st.one_of(
    st.tuples(st.just("price"), st.sampled_from(PRICES)),
    st.just(("first_token",)),
    st.just(("settle",)),
    st.tuples(st.just("set_generated"), st.integers(-5, 500)),
    st.tuples(st.just("computes"), st.integers(-5, 5000), st.none() | st.floats(-1, 5)),
    st.tuples(st.just("wait"), st.floats(0, 3)),
    st.tuples(st.just("scraped"), st.integers(0, 50), st.floats(0, 1)),
)
REQUESTS = st.tuples(
    st.integers(-3, 10_000), st.integers(-3, 10_000), st.none() | st.floats(-1, 5), st.lists(ACTIONS, max_size=6)
)


@given(requests=st.lists(REQUESTS, max_size=12), seed=st.integers(0, 2**32))
@examples(150)
def test_any_interleaving_ends_at_zero_and_never_goes_below(manual_clock, requests, seed):
    clock, order = manual_clock(), Random(seed)
    ledger, prices = Ledger(clock), PRICES[0]
    ledger.price(prices)
    waiting = [(prefill, kv, expires, list(actions)) for prefill, kv, expires, actions in requests]
    running = []
    while waiting or running:
        if waiting and (not running or order.random() < 0.5):
            prefill, kv, expires, actions = waiting.pop()
            at = None if expires is None else clock.now + expires
            running.append((reserve(ledger, prefill, kv, expires_prefill_at=at), actions))
        else:
            reservation, actions = running[index := order.randrange(len(running))]
            if not actions:
                reservation.settle()
                del running[index]
            elif (action := actions.pop())[0] == "wait":
                clock.now += action[1]
            elif action[0] == "price":
                prices = action[1]
                ledger.price(prices)
            elif action[0] == "scraped":
                ledger.apply_scrape(
                    EngineMetrics(running=action[1], kv_usage=action[2], kv_capacity=5000), clock.now - 0.1
                )
            elif action[0] == "computes":
                at = None if action[2] is None else clock.now + action[2]
                reservation.book_prefill(action[1], expires_prefill_at=at)
            else:
                getattr(reservation, action[0])(*action[1:])
        check_rates(ledger, clock.now, prices)
        assert ledger.requests == sum(reservation._open for reservation, _ in running)
        assert ledger.prefill_tokens == sum(reservation._prefill for reservation, _ in running)
        assert ledger.prefill_tokens >= 0
        assert ledger.prefill_attention >= 0
        assert ledger.kv_tokens >= 0
        assert ledger.foreign_requests >= 0
        assert ledger.foreign_kv_tokens >= 0
        *sums, prefill_share = ledger.sums(clock.now)
        assert prefill_share >= 0
        assert sums[3] >= 0
        assert sums == [
            ledger.requests + ledger.foreign_requests,
            ledger.prefill_tokens,
            ledger.prefill_attention,
            done(ledger, clock),
            ledger.kv_tokens + ledger.foreign_kv_tokens,
        ]
    assert (ledger.requests, ledger.prefill_tokens, ledger.kv_tokens) == (0, 0, 0)
    assert (ledger.prefill_attention, done(ledger, clock)) == (0, 0)


def test_a_reservation_is_seen_at_once_and_given_back_in_parts(manual_clock):
    ledger = Ledger(manual_clock())
    first = reserve(ledger, 100, 400)
    second = reserve(ledger, 50, 50)
    assert (ledger.requests, ledger.prefill_tokens, ledger.kv_tokens) == (2, 150, 450)
    assert (first.ahead, second.ahead) == (0, 100)

    first.first_token()
    assert (ledger.requests, ledger.prefill_tokens, ledger.kv_tokens) == (2, 50, 450)
    first.set_generated(10)
    first.set_generated(4)
    assert ledger.kv_tokens == 460
    second.settle()
    first.settle()
    first.set_generated(99)
    assert (ledger.requests, ledger.prefill_tokens, ledger.kv_tokens) == (0, 0, 0)


def test_a_request_whose_prompt_is_not_computed_there_changes_the_rates(manual_clock):
    clock = manual_clock()
    ledger = Ledger(clock)
    ledger.price(PRICES[0])
    assert ledger.rates_at(clock.now).running == 0
    reserve(ledger, 0, 500)
    check_rates(ledger, clock.now, PRICES[0])
    assert ledger.rates.running == 1


def test_the_share_that_prompts_took_lately_adds_up_and_fades(manual_clock):
    clock = manual_clock()
    ledger = Ledger(clock)
    assert ledger.sums(clock.now)[5] == 0
    for _ in range(2):
        reservation = reserve(ledger, 0, 100)
        reservation.book_prefill(100, seconds=0.4 * LATELY)
    assert ledger.sums(clock.now)[5] == pytest.approx(0.8)
    reservation.settle()
    assert ledger.sums(clock.now)[5] == pytest.approx(0.8), "who runs there was stalled all the same"
    clock.now += LATELY
    assert ledger.sums(clock.now)[5] == pytest.approx(0.8 / e)
    clock.now += 100 * LATELY
    assert ledger.sums(clock.now)[5] == pytest.approx(0, abs=1e-9)


def test_an_exact_total_corrects_what_was_guessed(manual_clock):
    ledger = Ledger(manual_clock())
    reservation = reserve(ledger, 0, 100)
    reservation.set_generated(400)
    reservation.set_generated(100)
    assert ledger.kv_tokens == 500
    reservation.set_generated(100, exact=True)
    assert ledger.kv_tokens == 200
    reservation.set_generated(150, exact=True)
    assert ledger.kv_tokens == 250
    reservation.set_generated(-1, exact=True)
    assert ledger.kv_tokens == 100
    reservation.settle()
    reservation.set_generated(0, exact=True)
    assert ledger.kv_tokens == 0


def test_prefill_that_nothing_reports_expires(manual_clock):
    clock = manual_clock()
    ledger = Ledger(clock)
    early = reserve(ledger, 10, 10, expires_prefill_at=clock.now + 1)
    late = reserve(ledger, 20, 20, expires_prefill_at=clock.now + 2)
    streamed = reserve(ledger, 40, 40)
    clock.now += 1
    assert ledger.prefill_tokens == 60
    early.first_token()
    clock.now += 5
    assert ledger.prefill_tokens == 40
    assert ledger.kv_tokens == 70
    for reservation in (early, late, streamed):
        reservation.settle()
    assert ledger.prefill_tokens == 0


def test_sums_are_of_the_moment_that_is_asked_for(manual_clock):
    """Nothing else needs to have been looked at: what has expired and faded by then is gone."""
    clock = manual_clock()
    ledger = Ledger(clock, half_life=5.0)
    unstreamed, streamed = reserve(ledger, 0, 10), reserve(ledger, 0, 20)
    unstreamed.book_prefill(10, seconds=1.0, expires_prefill_at=clock.now + 1)
    streamed.book_prefill(20, context=100, seconds=4.0)
    ledger.apply_scrape(metrics(running=6, usage=0.4), clock.now)
    assert ledger.sums(clock.now)[:5] == (2 + 4, 30, 50 + 20 * 110, 0, 30 + 3970)
    clock.now += 0.5
    assert ledger.sums(clock.now)[1:4] == (30, 50 + 20 * 110, 0.5)
    clock.now += 4.5
    assert ledger.sums(clock.now)[:5] == pytest.approx((2 + 2, 20, 20 * 110, 4.0, 30 + 1985))
    unstreamed.settle()
    streamed.settle()
    assert ledger.sums(clock.now)[1:4] == (0, 0, 0)


def test_a_prompt_whose_kv_does_not_come_is_booked_when_it_is_computed(manual_clock):
    clock = manual_clock()
    ledger = Ledger(clock)
    fetching = reserve(ledger, 0, 300)
    assert (fetching.ahead, ledger.prefill_tokens, ledger.kv_tokens) == (0, 0, 300)
    others = [reserve(ledger, 100, 100), reserve(ledger, 70, 70)]
    fetching.book_prefill(300, expires_prefill_at=clock.now + 2)
    # It explains its first token by what is queued now, not by what was when it was placed.
    assert (fetching.ahead, ledger.prefill_tokens, ledger.kv_tokens) == (170, 470, 470)
    fetching.book_prefill(300)
    assert (fetching.ahead, ledger.prefill_tokens) == (170, 470)
    clock.now += 2
    assert ledger.prefill_tokens == 170
    fetching.book_prefill(300)
    assert ledger.prefill_tokens == 170, "a prompt is computed once"
    for reservation in (fetching, *others):
        reservation.settle()
    fetching.book_prefill(300)
    assert (ledger.requests, ledger.prefill_tokens, ledger.kv_tokens) == (0, 0, 0)


@pytest.mark.parametrize("tokens", [0, -7])
def test_nothing_to_compute_books_nothing(manual_clock, tokens):
    ledger = Ledger(manual_clock())
    reservation = reserve(ledger, tokens, 10)
    reservation.book_prefill(tokens, expires_prefill_at=0.0)
    assert ledger.prefill_tokens == 0
    reservation.book_prefill(9)
    assert ledger.prefill_tokens == 9


def test_what_was_booked_at_once_is_not_booked_again(manual_clock):
    ledger = Ledger(manual_clock())
    reservation = reserve(ledger, 40, 40)
    reservation.book_prefill(25)
    assert ledger.prefill_tokens == 40
    reservation.first_token()
    reservation.book_prefill(25)
    assert ledger.prefill_tokens == 0


def test_expiries_of_ended_requests_do_not_pile_up(manual_clock):
    clock = manual_clock()
    ledger = Ledger(clock)
    for _ in range(10_000):
        reserve(ledger, 10, 10, expires_prefill_at=clock.now + 1e9).settle()
    assert len(ledger._expiring) <= SPARE_EXPIRIES + 3


def metrics(running: int = 0, waiting: int = 0, usage: float = 0.0, block_size: int = 0) -> EngineMetrics:
    return EngineMetrics(running=running, waiting=waiting, kv_usage=usage, kv_capacity=10_000, block_size=block_size)


def test_foreign_load_is_what_the_engine_has_beyond_ours(manual_clock):
    clock = manual_clock()
    ledger = Ledger(clock)
    reserve(ledger, 0, 1000)
    ledger.apply_scrape(metrics(running=3, waiting=2, usage=0.5, block_size=16), clock.now)
    assert ledger.foreign_requests == 4
    assert ledger.foreign_kv_tokens == 5000 - 1000 - 16


def test_requests_that_have_not_reached_the_engine_are_not_taken_from_foreign_load_twice(manual_clock):
    clock = manual_clock()
    ledger = Ledger(clock)
    ledger.apply_scrape(metrics(running=2, usage=0.2), clock.now)
    for _ in range(5):
        reserve(ledger, 100, 100)
    # Placed since the scrape: they add to what was foreign, and change nothing of it.
    assert (ledger.requests, ledger.foreign_requests, ledger.foreign_kv_tokens) == (5, 2, 2000)
    # A scrape that does not see ours yet underrates the others; it never counts ours as theirs.
    ledger.apply_scrape(metrics(running=2), clock.now)
    assert ledger.foreign_requests == 0


@pytest.mark.parametrize("settled_before", [0.0, GAUGE_LAG / 2])
def test_a_request_that_ended_while_the_scrape_was_under_way_does_not_become_foreign(manual_clock, settled_before):
    clock = manual_clock()
    ledger = Ledger(clock)
    ours = reserve(ledger, 0, 3000)
    ours.set_generated(500)
    ours.settle()
    clock.now += settled_before
    asked = clock.now
    clock.now += 1.5
    ledger.apply_scrape(metrics(running=1, usage=0.35), asked)
    assert ledger.foreign_requests == 0
    assert ledger.foreign_kv_tokens == 0


def test_a_request_that_ended_well_before_the_scrape_is_no_excuse(manual_clock):
    clock = manual_clock()
    ledger = Ledger(clock)
    reserve(ledger, 0, 3000).settle()
    clock.now += GAUGE_LAG * 2
    ledger.apply_scrape(metrics(running=1, usage=0.35), clock.now)
    assert ledger.foreign_requests == 1
    assert ledger.foreign_kv_tokens == 3500


def test_foreign_load_fades_with_age(manual_clock):
    clock = manual_clock()
    ledger = Ledger(clock, half_life=5.0)
    ledger.apply_scrape(metrics(running=8, usage=0.4), clock.now)
    clock.now += 5
    assert ledger.foreign_requests == pytest.approx(4)
    assert ledger.foreign_kv_tokens == pytest.approx(2000)
    clock.now += 500
    assert ledger.foreign_requests == pytest.approx(0, abs=1e-9)


def test_settled_requests_are_forgotten_without_scrapes(manual_clock):
    clock = manual_clock()
    ledger = Ledger(clock)
    for _ in range(1000):
        reserve(ledger, 1, 1).settle()
        clock.now += 1
    assert len(ledger._settled) <= 12
    assert repr(ledger) == "<Ledger requests=0 prefill=0 kv=0>"


def test_foreign_load_is_true_within_a_thousandth_at_any_time(manual_clock):
    """It is not worked out anew at each look."""
    clock = manual_clock()
    ledger = Ledger(clock, half_life=5.0)
    ledger.apply_scrape(EngineMetrics(running=8, kv_usage=0.5, kv_capacity=8000), clock.now)
    began = clock.now
    for step in range(2000):
        clock.now = began + step * 0.0017
        faded = 0.5 ** ((clock.now - began) / 5.0)
        assert ledger.foreign_requests == pytest.approx(8 * faded, rel=1e-3)
        assert ledger.foreign_kv_tokens == pytest.approx(4000 * faded, rel=1e-3)
    ledger.apply_scrape(EngineMetrics(running=3), clock.now)
    assert (ledger.foreign_requests, ledger.foreign_kv_tokens) == (3, 0)


def test_the_queue_is_done_in_order_and_no_faster_than_its_first_takes(manual_clock):
    clock = manual_clock()
    ledger = Ledger(clock)
    began = clock.now
    first, second, third = (reserve(ledger, 0, 100) for _ in range(3))
    first.book_prefill(100, seconds=2.0)
    clock.now += 0.5
    second.book_prefill(200, context=1000, seconds=3.0)
    assert (second.since, second.ahead, second.ahead_attention) == (began, 100, 100 * 50)
    assert ledger.prefill_attention == 100 * 50 + 200 * 1100
    assert done(ledger, clock) == 0.5
    clock.now += 5
    # Stuck, or slower than was thought: what is behind it is as far away as it was.
    assert done(ledger, clock) == 2.0
    second.settle()
    assert done(ledger, clock) == 2.0, "one that is not the first was cancelled"
    first.first_token()
    assert (ledger.prefill_tokens, ledger.prefill_attention, done(ledger, clock)) == (0, 0, 0)
    third.book_prefill(10, seconds=1.0)
    assert third.since == clock.now
    clock.now += 0.25
    assert 0 < done(ledger, clock) < 0.25, "the last one took more than was believed"
    third.settle()
    first.settle()
    assert done(ledger, clock) == 0


def test_the_next_one_is_begun_when_the_first_expires_and_not_when_that_is_seen(manual_clock):
    clock = manual_clock()
    ledger = Ledger(clock)
    began = clock.now
    first, second = reserve(ledger, 0, 10), reserve(ledger, 0, 10)
    first.book_prefill(10, seconds=1.0, expires_prefill_at=began + 1)
    second.book_prefill(10, seconds=5.0)
    clock.now += 3
    assert ledger.prefill_tokens == 10
    assert done(ledger, clock) == 2
    third = reserve(ledger, 0, 10)
    third.book_prefill(10)
    assert third.since == began + 1


def test_what_the_engine_has_no_room_for_yet_is_the_queue_less_the_steps_that_are_over(manual_clock):
    clock = manual_clock()
    ledger = Ledger(clock)
    first, second = reserve(ledger, 0, 0), reserve(ledger, 0, 0)
    first.book_prefill(4 * STEP_TOKENS, seconds=4.0)
    second.book_prefill(1000, seconds=0.1)
    assert ledger.unallocated_tokens == 4 * STEP_TOKENS + 1000
    clock.now += 3
    assert ledger.unallocated_tokens == 2 * STEP_TOKENS + 1000, "the last step has not said what it evicted"
    clock.now += 30
    assert ledger.unallocated_tokens == STEP_TOKENS + 1000
    first.first_token()
    clock.now += 30
    assert ledger.unallocated_tokens == 1000, "one step has computed it, and told, or has not"
    second.settle()
    assert ledger.unallocated_tokens == 0


@pytest.mark.parametrize("wrong", [0.25, 1, 4])
def test_a_queue_is_done_at_the_pace_at_which_beliefs_come_true(manual_clock, wrong):
    clock = manual_clock()
    ledger = Ledger(clock)
    for _ in range(100):
        together = [reserve(ledger, 0, 100) for _ in range(2)]
        for one in together:
            one.book_prefill(100, seconds=wrong)
        clock.now += 2
        for one in together:
            one.first_token()
            one.settle()
    reserve(ledger, 0, 100).book_prefill(100, seconds=wrong)
    clock.now += 0.5
    assert done(ledger, clock) == pytest.approx(wrong / 2, rel=0.05)
    clock.now += 10
    assert done(ledger, clock) == wrong


def test_prompts_that_take_no_time_are_no_fault(manual_clock):
    clock = manual_clock()
    ledger = Ledger(clock)
    for _ in range(20_000):
        one = reserve(ledger, 0, 1)
        one.book_prefill(1, seconds=0.001)
        one.first_token()
        one.settle()
    assert done(ledger, clock) == 0
