"""Covers: gateway/tenants/gate.py, gateway/tenants/scope.py, gateway/tenants/refusals.py."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.clock import ManualClock
from gateway.core.observer import Charge, Observer
from gateway.errors import LimitReached
from gateway.tenants.gate import MAX_HEADER_TENANTS, MAX_SCOPES, Gate, Grant
from gateway.tenants.identity import Caller
from gateway.tenants.limit_settings import BudgetSettings, LimitSettings, PriceSettings
from gateway.tenants.settings import HEADER, TenantKeySettings, TenantSettings
from tests.support.examples import examples
from tests.tenants.hosts import tenant

PRICES = {"m*": PriceSettings(input=1.0, cached=0.1, output=10.0)}


class Refusals(Observer):
    def __init__(self) -> None:
        self.all: list[tuple[str, str]] = []

    def limit_refused(self, tenant: str, limit: str) -> None:
        self.all.append((tenant, limit))


@pytest.fixture
def refusals() -> Refusals:
    return Refusals()


@pytest.fixture
def gate(clock, refusals) -> Gate:
    return Gate(lambda: PRICES, clock, refusals)


def key(caller: Caller, name: str = "ci", **limits: int) -> Caller:
    return caller.with_key(TenantKeySettings(name, "0" * 64, caller.tenant.name, limits=LimitSettings(**limits)))


def refusal(grant_or_gate, *of, **more) -> LimitReached:
    with pytest.raises(LimitReached) as caught:
        grant_or_gate(*of, **more)
    return caught.value


def test_who_has_no_limits_is_only_counted(gate):
    caller = tenant()
    for _ in range(1000):
        gate.admit(caller, "m", 10**9).exact(10**9, 1.0)
    grant = gate.admit(caller, "m", 10)
    assert grant.headers() == []
    grant.settle(100, 40, 7)
    assert grant.charge == Charge("red", 60, 40, 7)
    used = gate.account("tenant:red").used("day")
    assert (used.requests, used.prompt, used.cached, used.output) == (1, 100, 40, 7)
    assert used.cost == pytest.approx((60 * 1.0 + 40 * 0.1 + 7 * 10.0) / 1e6)


def test_requests_a_minute_are_exact(gate, refusals, clock):
    caller = tenant(limits=LimitSettings(requests_per_minute=3))
    for _ in range(3):
        gate.admit(caller, "m", 0).settle(0, 0, 0)
    error = refusal(gate.admit, caller, "m", 0)
    assert (error.type, error.code, error.reason) == ("requests", "rate_limit_exceeded", "requests")
    assert error.retry_after == pytest.approx(20.0)
    assert error.message == (
        "Rate limit reached for m of tenant red on requests per min (RPM): Limit 3, Used 3, Requested 1. "
        "Please try again in 20s."
    )
    assert dict(error.headers)["x-ratelimit-remaining-requests"] == "0"
    assert refusals.all == [("red", "requests")]
    clock.now += 20.0
    gate.admit(caller, "m", 0)


def test_a_request_that_one_limit_refuses_takes_nothing_of_another(gate):
    caller = key(tenant(limits=LimitSettings(requests_per_minute=100, concurrent=10)), concurrent=1)
    grant = gate.admit(caller, "m", 0)
    for _ in range(5):
        assert refusal(gate.admit, caller, "m", 0).reason == "concurrent"
    tenants, keys = (meter for _, meter in gate.meters(caller))
    assert (
        tenants.place.concurrent.value,
        keys.place.concurrent.value,
        tenants.requests.used(gate.clock.monotonic()),
    ) == (1, 1, 1)
    grant.settle(0, 0, 0)
    assert (tenants.place.concurrent.value, keys.place.concurrent.value) == (0, 0)


def test_tenant_key_and_model_must_all_allow(gate):
    red = tenant(
        limits=LimitSettings(requests_per_minute=5),
        per_model={"m*": LimitSettings(requests_per_minute=3), "m1": LimitSettings(requests_per_minute=4)},
    )
    ci, dev = key(red, "ci", requests_per_minute=1), key(red, "dev")
    gate.admit(ci, "m2", 0)
    assert "of key ci on" in refusal(gate.admit, ci, "m2", 0).message
    gate.admit(dev, "m2", 0)
    gate.admit(dev, "m2", 0)
    assert "of tenant red for m* on" in refusal(gate.admit, dev, "m2", 0).message
    gate.admit(dev, "m1", 0)
    gate.admit(dev, "m1", 0)
    assert "of tenant red on" in refusal(gate.admit, dev, "m1", 0).message


def test_tokens_are_taken_as_they_may_be_needed_and_corrected_at_the_end(gate, clock):
    caller = tenant(limits=LimitSettings(tokens_per_minute=1000))
    first = gate.admit(caller, "m", 0)
    first.exact(300, 499.5)
    second = gate.admit(caller, "m", 0)
    error = refusal(second.exact, 201, 0)
    assert (error.type, error.reason, error.retry_after) == ("tokens", "tokens", pytest.approx(0.06))
    second.settle(0, 0, 0)
    first.settle(300, 0, 50)
    assert dict(gate.admit(caller, "m", 0).headers())["x-ratelimit-remaining-tokens"] == "650"


def test_an_answer_that_is_longer_than_expected_is_a_debt(gate, clock):
    caller = tenant(limits=LimitSettings(tokens_per_minute=600))
    grant = gate.admit(caller, "m", 0)
    grant.exact(100, 10)
    grant.settle(100, 0, 1100)
    assert refusal(gate.admit, caller, "m", 0).retry_after == pytest.approx(60.1)


def test_a_request_of_more_than_the_limit_takes_all_of_it(gate, clock):
    caller = tenant(limits=LimitSettings(tokens_per_minute=600))
    grant = gate.admit(caller, "m", 10**6)
    grant.exact(500, 10**6)
    assert dict(grant.headers())["x-ratelimit-remaining-tokens"] == "0"
    grant.settle(500, 0, 40)
    assert dict(grant.headers())["x-ratelimit-remaining-tokens"] == "60"


def test_who_is_empty_is_refused_before_it_is_tokenized(gate):
    caller = tenant(limits=LimitSettings(tokens_per_minute=1000))
    gate.admit(caller, "m", 0).exact(900, 0)
    assert refusal(gate.admit, caller, "m", 500).reason == "tokens"
    gate.admit(caller, "m", 150)


def test_tokens_in_flight_and_concurrency_end_with_the_request(gate):
    caller = tenant(limits=LimitSettings(tokens_in_flight=100, concurrent=2))
    first, second = gate.admit(caller, "m", 0), gate.admit(caller, "m", 0)
    assert refusal(gate.admit, caller, "m", 0).reason == "concurrent"
    first.exact(60, 30)
    assert (error := refusal(second.exact, 11, 0)).reason == "tokens"
    assert error.type == "tokens"
    first.settle(60, 0, 30)
    second.exact(11, 0)


def test_places_in_a_queue(gate, refusals):
    caller = tenant(limits=LimitSettings(queued=1))
    first, second = gate.admit(caller, "m", 0), gate.admit(caller, "m", 0)
    first.queue()
    first.queue()
    refusal(second.queue)
    first.unqueue()
    first.unqueue()
    second.queue()
    second.settle(0, 0, 0)
    first.queue()
    assert refusals.all == [("red", "queued")]


def test_a_budget_is_never_overspent_by_more_than_what_was_in_flight(gate, clock):
    caller = tenant(budget=BudgetSettings(1000, "tokens", "day"))
    grants = []
    with pytest.raises(LimitReached) as caught:
        for _ in range(1000):
            grants.append(gate.admit(caller, "m", 0))
            grants[-1].exact(90, 10)
    error = caught.value
    assert len(grants) == 10
    assert (error.type, error.code, error.should_retry) == ("insufficient_quota", "insufficient_quota", False)
    assert error.retry_after == 43_200.0
    for grant in grants:
        grant.settle(90, 0, 5)
    assert gate.budget(caller).in_flight == 0
    assert gate.budget(caller).spent == 950
    assert gate.budget_ratios() == {("red",): 0.95}
    gate.admit(caller, "m", 0)


def test_many_that_are_tokenized_at_once_do_not_pass_a_budget_together(gate):
    caller = tenant(budget=BudgetSettings(100))
    grants = [gate.admit(caller, "m", 0) for _ in range(50)]
    passed = 0
    for grant in grants:
        try:
            grant.exact(50, 0)
            passed += 1
        except LimitReached as error:
            assert error.reason == "budget"  # noqa: PT017 -- others pass
    assert passed == 2


def test_a_budget_in_money_is_charged_by_the_prices(gate, caplog):
    caller = tenant(budget=BudgetSettings(0.001, "money", "total"))
    grant = gate.admit(caller, "m", 0)
    grant.exact(100, 40)
    assert gate.budget(caller).in_flight == pytest.approx(0.0005)
    grant.settle(100, 100, 90)
    assert gate.budget(caller).spent == pytest.approx(0.00091)
    gate.admit(caller, "m", 0).exact(0, 10)
    assert refusal(gate.admit, caller, "m", 0).retry_after is None
    gate.admit(tenant("blue", budget=BudgetSettings(1.0, "money")), "other", 0)
    assert "no price" in caplog.text


def test_a_configuration_that_is_read_again_keeps_what_is_used(gate):
    limits = LimitSettings(requests_per_minute=10, concurrent=5)
    before = gate.admit(tenant(limits=limits, budget=BudgetSettings(100)), "m", 0)
    before.exact(60, 0)
    caller = tenant(limits=LimitSettings(requests_per_minute=20, concurrent=1), budget=BudgetSettings(70))
    assert refusal(gate.admit, caller, "m", 0).reason == "concurrent"
    before.settle(60, 0, 10)
    assert refusal(gate.admit, caller, "m", 0).reason == "budget"
    assert gate.meters(caller)[0][1].requests.used(gate.clock.monotonic()) == 1
    other_unit = tenant(limits=limits, budget=BudgetSettings(70, "money"))
    gate.admit(other_unit, "m", 0)


def test_it_settles_once_and_harmlessly_after(gate):
    caller = tenant(limits=LimitSettings(concurrent=1, tokens_per_minute=100))
    grant = gate.admit(caller, "m", 0)
    grant.settle(10, 0, 0)
    charge = grant.charge
    grant.settle(50, 0, 50)
    grant.exact(90, 0)
    grant.queue()
    assert grant.charge is charge
    [(_, meter)] = gate.meters(caller)
    assert (meter.place.concurrent.value, meter.place.tokens_in_flight.value, meter.place.queued.value) == (0, 0, 0)
    assert gate.account("tenant:red").used("total").requests == 1


def test_who_only_a_header_names_spends_nothing_of_a_tenant_of_that_name(gate):
    settings = TenantSettings("default", budget=BudgetSettings(100))
    for number in range(MAX_HEADER_TENANTS + 100):
        caller = Caller.of(settings, name=f"t{number}", label=HEADER)
        gate.admit(caller, "m", 0).settle(1, 0, 0)
    assert len(gate.state.names()) == len(gate._budgets) == MAX_HEADER_TENANTS
    assert gate.budget_ratios() == {}
    named = Caller.of(settings, name="red", label=HEADER)
    gate.admit(named, "m", 0).settle(5, 0, 0)
    assert gate.account("tenant:red").used("total").prompt == 0


def test_what_it_looks_up_once_is_bounded(gate, clock):
    settings = TenantSettings("red", limits=LimitSettings(requests_per_minute=10**6))
    for _ in range(MAX_SCOPES + 10):  # a new one each time that a configuration is read
        gate.admit(Caller.of(settings), "m", 0)
    assert len(gate._scopes) <= MAX_SCOPES
    assert len(gate._meters) == 1


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["admit", "exact", "queue", "unqueue", "settle", "settle", "wait"]),
        st.integers(0, 1_000_000),
        st.integers(0, 400),
    ),
    max_size=120,
)


@given(EVENTS)
@examples(300)
def test_in_any_order_of_ends_nothing_stays_taken_and_each_is_charged_once(events):
    clock = ManualClock(0.0, epoch=1e9)
    gate = Gate(lambda: PRICES, clock, Observer())
    red = tenant(
        limits=LimitSettings(tokens_per_minute=1000, requests_per_minute=30, concurrent=8, queued=2),
        per_model={"m": LimitSettings(tokens_in_flight=900)},
        budget=BudgetSettings(5000),
    )
    callers = [red, key(red, "a", tokens_per_minute=800), key(red, "b", concurrent=2)]
    grants: list[Grant] = []
    settled: dict[Grant, int] = {}
    for what, which, tokens in events:
        grant = grants[which % len(grants)] if grants else None
        try:
            if what == "admit":
                grants.append(gate.admit(callers[which % 3], "m", tokens))
            elif what == "wait":
                clock.now += which % 50
            elif grant is None:
                continue
            elif what == "exact":
                grant.exact(tokens, 10.0)
            elif what == "queue":
                grant.queue()
            elif what == "unqueue":
                grant.unqueue()
            else:
                grant.settle(tokens, tokens // 3, 7)
                settled.setdefault(grant, tokens + 7)
        except LimitReached:
            pass
    order = [grant for grant in grants if grant not in settled]
    random.Random(len(events)).shuffle(order)
    for grant in (*order, *grants):
        grant.settle(0, 0, 0)
    for caller in callers:
        for _, meter in gate.meters(caller):
            assert (meter.place.concurrent.value, meter.place.tokens_in_flight.value, meter.place.queued.value) == (
                0,
                0,
                0,
            )
            for bucket in (meter.requests, meter.tokens):
                assert bucket is None or bucket.used(clock.monotonic()) >= 0
    assert gate.budget(red).in_flight == 0
    used = gate.account("tenant:red").used("total")
    assert used.requests == len(grants)
    assert used.prompt + used.output == sum(settled.values())
    keyed = sum(gate.account(f"key:{name}").used("total").requests for name in ("a", "b"))
    assert keyed == sum(grant.caller.key is not None for grant in grants)
