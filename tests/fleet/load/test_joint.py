"""Covers: gateway/fleet/load/joint.py, gateway/fleet/load/others.py.

Several ledgers of one engine core that hear each other, against one with all bookings.
"""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.fleet.load.joint import hear, join, leave, own_row
from gateway.fleet.load.ledger import MOST_SETTLED, Ledger
from gateway.fleet.load.others import NOTHING, Row
from gateway.framework import Scalars
from gateway.framework.fleet import EngineMetrics
from tests.support.examples import examples
from tests.support.ledgers import reserve

PRICES = Scalars(1e-4, 1e-9, 0.02, 0.001, 1e-7, 0.01, 1e-6, 1e-5, 2048)


class Company:
    """Ledgers that hear each other's changes at once, or, while ``late``, when ``tell`` is called."""

    def __init__(self, clock, count: int) -> None:
        self.ledgers = [Ledger(clock) for _ in range(count)]
        self.late = False
        for ledger in self.ledgers:
            ledger.price(PRICES)
            join(ledger, self.touched, self.tell)

    def touched(self) -> None:
        if not self.late:
            self.tell()

    def tell(self) -> None:
        rows = [own_row(ledger) for ledger in self.ledgers]
        for number, ledger in enumerate(self.ledgers):
            for writer, row in enumerate(rows):
                if writer != number:
                    hear(ledger, writer, row)


ACTIONS = st.lists(
    st.one_of(
        st.just(("first_token",)),
        st.just(("settle",)),
        st.tuples(st.just("set_generated"), st.integers(0, 500)),
        st.tuples(st.just("wait"), st.floats(0, 3)),
    ),
    max_size=5,
)
REQUESTS = st.lists(
    st.tuples(st.integers(0, 9_000), st.integers(0, 9_000), st.floats(0, 2), st.none() | st.floats(0, 5), ACTIONS),
    max_size=12,
)


def same(ledger: Ledger, one: Ledger, now: float) -> None:
    requests, waiting, attention, done, kv, share = ledger.sums(now)
    assert (requests, waiting, attention, kv) == one.sums(now)[:3] + one.sums(now)[4:5]
    assert share == pytest.approx(one.sums(now)[5], rel=1e-6, abs=1e-9)
    assert ledger.prefill_attention == one.prefill_attention
    assert 0 <= done <= ledger._most_done


@given(requests=REQUESTS, seed=st.integers(0, 2**32), late=st.booleans())
@examples(150)
def test_each_of_three_ledgers_has_what_one_ledger_of_all_would_have(manual_clock, requests, seed, late):
    clock, order = manual_clock(), Random(seed)
    clock.now = 1000.0
    company, one = Company(clock, 3), Ledger(clock)
    one.price(PRICES)
    company.late = late
    waiting, running = list(requests), []
    while waiting or running:
        if waiting and (not running or order.random() < 0.5):
            prefill, kv, seconds, expires, actions = waiting.pop()
            clock.now += 1e-6  # two processes never book in the same instant, of which nobody could say who is first
            at = None if expires is None else clock.now + expires
            both = [
                reserve(each, prefill, kv, expires_prefill_at=at, seconds=seconds)
                for each in (order.choice(company.ledgers), one)
            ]
            running.append((both, list(actions)))
        else:
            both, actions = running[index := order.randrange(len(running))]
            if not actions:
                for each in both:
                    each.settle()
                del running[index]
            elif (action := actions.pop())[0] == "wait":
                clock.now += action[1]
            else:
                for each in both:
                    getattr(each, action[0])(*action[1:])
        if late and order.random() < 0.7:
            continue
        company.tell()
        for ledger in company.ledgers:
            same(ledger, one, clock.now)
            # Prompts that were booked before others were heard of were believed to be the first; and each ledger drops
            # what has expired when it is read.
            if not late and not any(expires is not None for _, _, _, expires, _ in requests):
                assert ledger.prefilled == pytest.approx(one.prefilled)
                assert (ledger._begun, ledger._most_done) == (one._begun, one._most_done) or not one._prefill
                if ledger._pace == one._pace:  # each learns it from its own prompts
                    assert ledger.sums(clock.now)[3] == one.sums(clock.now)[3]
                    assert ledger.unallocated_tokens == one.unallocated_tokens
    company.tell()
    for ledger in company.ledgers:
        assert (ledger.requests, ledger.kv_tokens, ledger.prefill_tokens, ledger.prefill_attention) == (0, 0, 0, 0.0)
        assert own_row(ledger)[:7] == NOTHING[:7]


def test_a_writer_that_is_gone_takes_its_bookings_with_it(manual_clock):
    clock = manual_clock()
    clock.now = 50.0
    company = Company(clock, 2)
    mine, others = company.ledgers
    reserve(others, 4000, 4000, seconds=2.0)
    clock.now = 51.0
    reserve(mine, 1000, 1000, seconds=0.5)
    assert mine.sums(51.0) == (2, 5000, pytest.approx(8.5e6), 1.0, 5000, pytest.approx(mine.sums(51.0)[5]))
    clock.now = 51.5
    company.late = True
    hear(mine, 1, NOTHING)
    # The first prompt of all is gone: its own is the next, and begins now.
    assert mine.sums(51.5)[:5] == (1, 1000, 5e5, 0.0, 1000)
    assert mine.sums(51.7)[3] == pytest.approx(0.2)


def test_seconds_of_computed_prompts_add_up_over_any_number_of_them(manual_clock):
    """A row's growing figures must never shrink by rounding: it would be taken for another process's."""
    clock, order = manual_clock(), Random(1)
    clock.now = 10.0
    company, total = Company(clock, 3), 0.0
    for _ in range(300):
        seconds = order.random()
        reserve(order.choice(company.ledgers), 1000, 1000, seconds=seconds).first_token()
        total += seconds
        company.tell()
    for ledger in company.ledgers:
        assert ledger.prefilled == pytest.approx(total)


def test_only_the_first_prompt_of_all_has_progress(manual_clock):
    clock = manual_clock()
    clock.now = 10.0
    company = Company(clock, 2)
    first, second = company.ledgers
    head = reserve(first, 1000, 1000, seconds=1.0)
    clock.now = 10.5
    behind = reserve(second, 1000, 1000, seconds=4.0)
    assert (behind.ahead, behind.since) == (1000, 10.0)
    for ledger in company.ledgers:
        assert ledger.sums(13.0)[3] == 1.0  # up to what it takes, and nothing of what is behind it
    clock.now = 13.0
    head.first_token()
    for ledger in company.ledgers:
        assert ledger.sums(13.0)[3] == 0.0
        assert ledger.sums(14.0)[3] == pytest.approx(ledger._pace)
    # The pace is learned from prompts of one's own that were the first of all.
    assert first._pace == pytest.approx((0.95 + 1) / (0.95 + 3))
    assert second._pace == 1.0


def test_requests_of_others_that_ended_during_a_scrape_are_not_foreign(manual_clock):
    clock = manual_clock()
    clock.now = 10.0
    company = Company(clock, 2)
    mine, others = company.ledgers
    company.late = True
    before = [reserve(others, 0, 100) for _ in range(3)]
    company.tell()
    before[0].settle()
    reserve(others, 0, 100)
    clock.now = 10.1
    # What it has heard is three; it asks for the newest, and remembers the one that ended.
    mine.apply_scrape(EngineMetrics(at=10.1, running=4, kv_usage=0.4, kv_capacity=1000), asked=10.0)
    assert mine.requests == 3
    assert (mine.foreign_requests, mine.foreign_kv_tokens) == (0.0, 0.0)
    mine.apply_scrape(EngineMetrics(at=10.1, running=6, kv_usage=0.5, kv_capacity=1000), asked=10.0)
    assert (mine.foreign_requests, mine.foreign_kv_tokens) == (2.0, pytest.approx(100.0))


def test_a_ledger_that_leaves_has_its_own_bookings_only(manual_clock):
    clock = manual_clock()
    clock.now = 10.0
    company = Company(clock, 2)
    mine, others = company.ledgers
    reserve(mine, 500, 600, seconds=1.0)
    reserve(others, 700, 800, seconds=1.0)
    assert (mine.requests, mine.own_requests, mine.kv_tokens) == (2, 1, 1400)
    assert mine.own_tokens == (500, 600)
    company.late = True
    leave(mine)
    assert (mine.requests, mine.own_requests, mine.prefill_tokens, mine.kv_tokens) == (1, 1, 500, 600)
    leave(mine)
    assert mine.sums(10.5)[3] == 0.5


@pytest.mark.parametrize("age", [1e4, 1e9])
def test_a_row_of_any_age_may_follow_a_young_one(manual_clock, age):
    """A host that runs for longer than another tells times from before that one's start."""
    clock = manual_clock
    clock.now = 1e4
    ledger = Ledger(clock)
    join(ledger, lambda: None, lambda: None)
    for row in (
        Row(requests=1, share=0.5, share_at=clock.now),
        Row(requests=1, share=0.0, share_at=clock.now - age),
        Row(requests=1, share=0.5, share_at=clock.now),
        Row(requests=1, share=0.5, share_at=clock.now - age),
    ):
        hear(ledger, 1, row)
        expected = row.share if row.share_at == clock.now else 0.0
        assert ledger.sums(clock.now)[5] == pytest.approx(expected)
    hear(ledger, 1, NOTHING)
    assert ledger.sums(clock.now)[5] == 0.0


@pytest.mark.parametrize("count", [10**9, 10**15])
def test_figures_that_no_engine_has_cost_little_and_heal(manual_clock, count):
    """Whoever can write to the server of the replicas can make others believe a wrong load, and nothing else."""
    ledger = Ledger(manual_clock())
    join(ledger, lambda: None, lambda: None)
    hear(ledger, 1, Row(requests=count, kv_tokens=count, settled=1))
    hear(ledger, 1, Row(requests=1, settled=count, settled_tokens=count))
    hear(ledger, 1, Row(requests=count, kv_tokens=count))
    hear(ledger, 1, NOTHING)
    assert len(ledger._settled) <= MOST_SETTLED
    assert own_row(ledger) == NOTHING
    assert (ledger.requests, ledger.kv_tokens) == (0, 0)


def test_a_prompt_that_follows_one_of_as_many_tokens_has_its_own_attention(manual_clock):
    ledger = Ledger(manual_clock())
    join(ledger, lambda: None, lambda: None)
    hear(ledger, 1, Row(1, 100, 100, prefill_attention=5.0, first_booked=1.0, first_tokens=100, first_seconds=0.1))
    after = Row(1, 100, 100, prefill_attention=9.0, first_booked=2.0, first_tokens=100, first_seconds=0.1, ended=1.5)
    hear(ledger, 1, after)
    assert ledger.prefill_attention == 9.0
    hear(ledger, 1, NOTHING)
    assert ledger.others.prefill_attention == ledger.prefill_attention == 0.0
    assert own_row(ledger) == NOTHING
