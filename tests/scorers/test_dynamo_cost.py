from __future__ import annotations

from collections import Counter
from math import exp

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.framework.match import Match, Matches
from scorers.dynamo_cost import DynamoCost
from tests.support.candidates import context, endpoint, request


def scorer(**parameters) -> DynamoCost:
    return DynamoCost(DynamoCost.Parameters(block_size=1, **parameters), context())


def asking(tokens, **match):
    asked = request(tokens)
    asked.matches = Matches({0: Match(**match)})
    return asked


def test_the_example_of_dynamo_s_documentation() -> None:
    """Three workers, a prompt of 10 blocks; theirs give the decode figure with the request in it."""
    asked = request(10, held={0: 2, 1: 5, 2: 8})
    workers = [endpoint(slot, kv_tokens=resident - 10) for slot, resident in enumerate((10, 5, 9))]
    assert scorer().costs(asked, workers) == [18, 10, 11]


def test_each_tier_has_its_credit() -> None:
    asked = asking(100, gpu=40, cpu=20, storage=10)
    assert scorer().costs(asked, [endpoint(0)]) == [100 - 40 - 15 - 2.5 + 100]
    assert scorer(overlap_credit=0.5, host_credit=0.0, disk_credit=1.0).costs(asked, [endpoint(0)]) == [70 + 100]


def test_the_credit_is_no_more_than_what_is_to_be_computed() -> None:
    assert scorer(prefill_scale=6).costs(asking(10, gpu=16), [endpoint(0)]) == [10]


def test_queued_prefill_and_requests_count() -> None:
    busy = endpoint(0, prefill_tokens=30, kv_tokens=50, foreign_kv_tokens=5.0, requests=2, foreign_requests=1.0)
    assert scorer(prefill_scale=2, request_weight=10).costs(request(20), [busy]) == [2 * 50 + 55 + 20 + 30]


def test_decay_takes_credit_from_who_has_more_queued_than_the_least() -> None:
    asked = request(100, held={0: 100, 1: 100})
    calm, busy = endpoint(0, prefill_tokens=50), endpoint(1, prefill_tokens=150)
    # An excess of one prompt's length halves the credit.
    assert scorer(decay=1.0).costs(asked, [calm, busy]) == [50 + 100, 250 - 50 + 100]


def test_half_is_the_cost_of_one_half() -> None:
    assert scorer(half=20).score(request(10), [endpoint(0)]) == [0.5]


def test_with_a_temperature_the_best_is_drawn_by_softmax() -> None:
    asked = request(1)
    candidates = [endpoint(slot, kv_tokens=tokens) for slot, tokens in enumerate((0, 50, 100))]
    warm, firsts = scorer(temperature=0.5), Counter()
    for _ in range(20_000):
        scores = warm.score(asked, candidates)
        firsts[scores.index(max(scores))] += 1
    weights = [exp(-share / 0.5) for share in (0.0, 0.5, 1.0)]
    for slot, weight in enumerate(weights):
        assert firsts[slot] / 20_000 == pytest.approx(weight / sum(weights), abs=0.015)


@given(
    st.integers(0, 10**6),
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**7), st.integers(0, 10**8)), max_size=5),
    st.sampled_from([0.0, 1e-9, 0.3, 100.0]),
)
def test_scores_are_in_range(prompt, states, temperature) -> None:
    asked = request(prompt, held={slot: held for slot, (held, _, _) in enumerate(states)})
    fleet = [endpoint(slot, prefill_tokens=a, kv_tokens=b) for slot, (_, a, b) in enumerate(states)]
    scores = scorer(temperature=temperature, decay=1.0).score(asked, fleet)
    assert len(scores) == len(fleet)
    assert all(0 <= score <= 1 for score in scores)


BAD = {"overlap_credit": 1.5, "host_credit": -1, "disk_credit": 2, "prefill_scale": float("nan"), "decay": -1}


@pytest.mark.parametrize(
    ("name", "value"), [*BAD.items(), ("request_weight", -1), ("temperature", -1), ("half", 0), ("block_size", 0)]
)
def test_parameters_have_ranges(name, value) -> None:
    with pytest.raises(ValueError, match=name):
        DynamoCost.Parameters(**{name: value})
