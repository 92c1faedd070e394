from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from filters.slo import SloFilter
from gateway.core.clock import ManualClock
from gateway.framework import Kind
from gateway.framework.request import Slo
from tests.support.candidates import context, endpoint, names, request


def kept(asked, *endpoints, now=0.0, **parameters):
    rule = SloFilter(SloFilter.Parameters(**parameters), context(clock=ManualClock(now)))
    return names(rule.filter(asked, endpoints))


def test_without_objectives_all_stay() -> None:
    fleet = [endpoint(0), endpoint(1, prefill_tokens=10**6)]
    assert kept(request(1000), *fleet) == ["e0", "e1"]
    assert kept(request(1000, slo=Slo()), *fleet) == ["e0", "e1"]


def test_who_would_be_late_with_the_first_token_goes() -> None:
    # 1 ms a token: 1 s for the prompt, and what is queued.
    fleet = [endpoint(0), endpoint(1, prefill_tokens=500), endpoint(2, prefill_tokens=1500)]
    asked = request(1000, held={2: 900}, slo=Slo(ttft=1.2))
    assert kept(asked, *fleet) == ["e0"]
    asked.slo = Slo(ttft=1.55)
    assert kept(asked, *fleet) == ["e0", "e1"]
    asked.slo = Slo(ttft=1.65)
    assert kept(asked, *fleet) == ["e0", "e1", "e2"]


def test_what_has_passed_since_the_arrival_is_gone() -> None:
    fleet = [endpoint(0), endpoint(1, prefill_tokens=500)]
    asked = request(1000, slo=Slo(ttft=2.0))
    assert kept(asked, *fleet, now=0.4) == ["e0", "e1"]
    assert kept(asked, *fleet, now=0.6) == ["e0"]


def test_what_waits_at_the_gateway_to_be_placed_before_counts() -> None:
    fleet = [endpoint(0), endpoint(1)]
    assert kept(request(1000, slo=Slo(ttft=2.0), ahead={0: 1.1}), *fleet) == ["e1"]
    assert kept(request(1000, slo=Slo(ttft=2.0), ahead={0: 0.9}), *fleet) == ["e0", "e1"]


def test_who_would_decode_too_slowly_goes() -> None:
    # 20 ms, 1 ms a request with this one, 1 us a resident token with this one's.
    fleet = [endpoint(0, requests=3, kv_tokens=4000), endpoint(1, requests=9, kv_tokens=4000)]
    asked = request(1000, slo=Slo(tpot=0.030))
    assert kept(asked, *fleet) == ["e0"]
    assert kept(asked, *fleet, margin=0.8) == ["e0", "e1"]
    asked.kind = Kind.EMBEDDING
    assert kept(asked, *fleet) == ["e0", "e1"]


def test_both_must_be_met() -> None:
    fleet = [endpoint(0, requests=20), endpoint(1, prefill_tokens=5000), endpoint(2, requests=1)]
    assert kept(request(1000, slo=Slo(ttft=2.0, tpot=0.03)), *fleet) == ["e2"]


def test_where_nobody_meets_them_all_stay() -> None:
    fleet = [endpoint(0, requests=20), endpoint(1, prefill_tokens=5000)]
    assert kept(request(1000, slo=Slo(ttft=2.0, tpot=0.03)), *fleet) == ["e0", "e1"]
    assert kept(request(1000, slo=Slo(ttft=0.5)), *fleet, now=100.0) == ["e0", "e1"]


@given(
    st.lists(st.tuples(st.integers(0, 100), st.integers(0, 10**5), st.integers(0, 10**6)), max_size=6),
    st.one_of(st.none(), st.floats(0.001, 10)),
    st.one_of(st.none(), st.floats(0.001, 1)),
)
def test_it_never_empties_the_list(states, ttft, tpot) -> None:
    fleet = [endpoint(i, requests=a, prefill_tokens=b, kv_tokens=c) for i, (a, b, c) in enumerate(states)]
    left = kept(request(500, slo=Slo(ttft, tpot)), *fleet)
    assert bool(left) == bool(fleet)
    assert left == [name for name in names(fleet) if name in left]


def test_the_margin_has_a_range() -> None:
    with pytest.raises(ValueError, match="margin"):
        SloFilter.Parameters(margin=0.0)
