from __future__ import annotations

import pytest

from gateway.tenants.limit_settings import LimitSettings
from gateway.tenants.meters import Meter, of_model


def meter(**limits: int) -> Meter:
    return Meter("tenant red", LimitSettings(**limits), 0.0)


@pytest.mark.parametrize(
    ("model", "pattern"),
    [("qwen3-32b", "qwen3-32b"), ("qwen3-8b", "qwen3-*"), ("qwen2", "qwen*"), ("llama", "*"), ("qwen3-", "qwen3-*")],
)
def test_the_exact_name_counts_else_the_longest_beginning(model, pattern):
    rules = {"*": 1, "qwen3-*": 2, "qwen*": 3, "qwen3-32b": 4}
    assert of_model(rules, model) == (pattern, rules[pattern])


def test_a_name_without_a_star_is_no_beginning():
    assert of_model({"qwen3": 1}, "qwen3-32b") is None


def test_requests_a_minute():
    one = meter(requests_per_minute=60)
    for _ in range(60):
        assert one.refuses_begin(0, 0.0) is None
        one.requests.take(1, 0.0)
    refusal = one.refuses_begin(0, 0.0)
    assert refusal[:6] == ("requests", "requests", "requests per min (RPM)", 60, 60, 1)
    assert refusal.wait == pytest.approx(1.0)


def test_concurrent_requests():
    one = meter(concurrent=2)
    one.place.concurrent.add(1)
    assert one.refuses_begin(0, 0.0) is None
    one.place.concurrent.add(1)
    assert one.refuses_begin(0, 0.0).limit == "concurrent"


def test_before_tokens_are_counted_only_who_has_less_than_half_of_the_estimate_is_refused():
    one = meter(tokens_per_minute=1000)
    one.tokens.take(700, 0.0)
    assert one.refuses_begin(600, 0.0) is None
    assert one.refuses_begin(0, 0.0) is None
    refusal = one.refuses_begin(700, 0.0)
    assert (refusal.limit, refusal.asked, refusal.used) == ("tokens", 700, 700)
    assert refusal.wait == pytest.approx(24.0), "until all that it is thought to need is there"
    one.tokens.take(300, 0.0)
    assert one.refuses_begin(0, 0.0) is not None, "it is empty"


def test_tokens_a_minute():
    one = meter(tokens_per_minute=1000)
    assert one.refuses_tokens(5000, 0.0) is None, "more than there ever is"
    one.tokens.take(400, 0.0)
    assert one.refuses_tokens(600, 0.0) is None
    assert one.refuses_tokens(601, 0.0)[:6] == ("tokens", "tokens", "tokens per min (TPM)", 1000, 400, 601)


def test_tokens_in_flight():
    one = meter(tokens_in_flight=1000)
    assert one.refuses_tokens(5000, 0.0) is None, "it is alone"
    one.place.tokens_in_flight.add(900)
    assert one.refuses_tokens(100, 0.0) is None
    assert one.refuses_tokens(101, 0.0)[:2] == ("tokens-in-flight", "tokens")
    assert one.refuses_tokens(5000, 0.0) is not None


def test_requests_in_a_queue():
    one = meter(queued=1)
    assert one.refuses_queueing() is None
    one.place.queued.add(1)
    assert one.refuses_queueing().limit == "queued"
    assert meter().refuses_queueing() is None


def test_other_limits_keep_what_is_used():
    one = meter(requests_per_minute=60, concurrent=5)
    one.requests.take(50, 0.0)
    one.place.concurrent.add(3)
    one.become(LimitSettings(requests_per_minute=120, tokens_per_minute=100, concurrent=3), 0.0)
    assert one.requests.used(0.0) == 50
    assert one.tokens.used(0.0) == 0
    assert one.refuses_begin(0, 0.0).limit == "concurrent"
    one.become(LimitSettings(), 0.0)
    assert one.refuses_begin(0, 0.0) is None


def test_it_may_be_forgotten_when_a_new_one_would_allow_no_more():
    one = meter(requests_per_minute=60, tokens_per_minute=60)
    assert one.idle(0.0)
    one.place.concurrent.add(1)
    assert not one.idle(0.0)
    one.place.concurrent.add(-1)
    one.tokens.take(30, 0.0)
    assert not one.idle(29.0)
    assert one.idle(30.0)
