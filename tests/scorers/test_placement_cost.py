from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.framework import NO_MATCH, EngineMetrics, Kind, Match, Matches, Source
from scorers.placement_cost import STEP_TOKENS, PlacementCost
from tests.scheduling.candidates import Physics, context, endpoint, request


def scorer(reuse: float = 0.0, **parameters) -> PlacementCost:
    return PlacementCost(PlacementCost.Parameters(reuse=reuse, **parameters), context())


ATTENTION = Physics(quadratic=1e-6)
"""With 1 us for each pair of a new token and one before it."""


def seconds(one: PlacementCost, asked, there) -> float:
    """The cost of ``asked`` on the endpoint ``there``."""
    return sum(one.explain(asked, there).values())


def cost(asked, **work) -> float:
    return seconds(scorer(), asked, endpoint(0, cost=ATTENTION, **work))


def test_an_idle_endpoint_costs_the_prefill_of_what_it_does_not_hold() -> None:
    assert cost(request(1000)) == pytest.approx(1.000 + 0.500)
    # 100 new tokens behind 900 held ones: 0.1 s and 100 x (900 + 50) us
    assert cost(request(1000, held={0: 900})) == pytest.approx(0.1 + 0.095)


def test_a_prompt_that_is_held_whole_still_computes_one_token() -> None:
    assert cost(request(1000, held={0: 1000})) == pytest.approx(0.001 + 0.0009995)


def test_the_formula_term_by_term() -> None:
    asked = request(1000, held={0: 600}, expected_output=200.0)
    prefill = 0.4 + 400 * (600 + 200) * 1e-6
    steps = 1 + (500 + 400) / STEP_TOKENS
    running, kv = 4 + 2.5, 3000 + 1000
    expected = (
        0.5
        + 500 * 300e-6  # queued
        - 0.2  # of which so much is done
        + prefill
        + steps * (0.001 * running + 1e-6 * kv)  # what the batch adds to each step
        + 0.1 * prefill * running  # what the batch suffers
        + 0.1 * 200 * 1e-6 * kv  # what the own decode suffers
    )
    work = {"requests": 4, "prefill_tokens": 500, "kv_tokens": 3000}
    work |= {"prefill_attention": 500 * 300.0, "prefill_done": 0.2}
    assert cost(asked, **work, foreign_requests=2.5, foreign_kv_tokens=1000.0) == pytest.approx(expected)


def test_a_new_token_pushes_out_another() -> None:
    """Where the cache is full, a second copy of a prefix costs whoever comes back for what it displaced."""
    asked = request(1000, held={0: 600})
    prefill = 0.4
    for work in ({}, {"requests": 2, "kv_tokens": 500}):
        there = endpoint(0, **work)
        without, half = seconds(scorer(), asked, there), seconds(scorer(reuse=0.5), asked, there)
        assert half - without == pytest.approx(0.5 * prefill)
    assert PlacementCost.Parameters().reuse == 0.5


TIERS = st.fixed_dictionaries({tier: st.integers(0, 4000) for tier in ("gpu", "cpu", "storage")})


def held(prompt, **tiers):
    asked = request(prompt)
    tokens = sum(tiers.values())
    asked.matches = Matches({0: Match(**tiers, expected_hit=min(tokens, prompt - 1), source=Source.EVENTS)})
    return asked


def test_what_is_held_off_the_gpu_costs_its_fetch() -> None:
    there = endpoint(0)
    parameters = {"cpu_fetch": 1e-4, "storage_fetch": 5e-4}
    on_gpu = seconds(scorer(**parameters), held(1000, gpu=800), there)
    below = seconds(scorer(**parameters), held(1000, gpu=100, cpu=500, storage=200), there)
    assert below - on_gpu == pytest.approx(500e-4 + 200 * 5e-4)
    cold = seconds(scorer(**parameters), held(1000), there)
    assert on_gpu < below < cold
    # Less than a block is held: nothing is served from it, and nothing fetched.
    unusable = request(1000)
    unusable.matches = Matches({0: Match(cpu=10, expected_hit=0)})
    assert seconds(scorer(**parameters), unusable, there) == cold


def test_a_copy_on_the_cpu_is_worth_nearly_its_prefill() -> None:
    asked = request(10_000)
    asked.matches = Matches({slot: Match(**{tier: 9984}, expected_hit=9984) for slot, tier in ((0, "cpu"), (1, "gpu"))})
    cpu, gpu, cold = scorer().score(asked, [endpoint(slot) for slot in range(3)])
    assert gpu > cpu > 0.9 > 0.1 > cold


@given(tiers=TIERS, prompt=st.integers(1, 10_000), running=st.integers(0, 50), kind=st.sampled_from(Kind))
def test_the_terms_that_are_told_are_what_the_score_is_made_of(tiers, prompt, running, kind) -> None:
    asked, there = (
        held(prompt, **tiers),
        endpoint(0, cost=ATTENTION, requests=running, prefill_tokens=300, kv_tokens=9000),
    )
    asked.kind, asked.expected_output = kind, 100.0
    one = scorer(reuse=0.5)
    terms = one.explain(asked, there)
    assert tuple(terms) == ("queued", "prefill", "fetch", "batch", "stall", "decode", "displaced")
    assert min(terms.values()) >= 0
    assert one.score(asked, [there]) == pytest.approx([1 / (1 + sum(terms.values()))])


WORK = st.fixed_dictionaries(
    {
        "requests": st.integers(0, 1000),
        "prefill_tokens": st.integers(0, 10**6),
        "prefill_attention": st.floats(0, 1e9),
        "prefill_done": st.floats(0, 100),
        "kv_tokens": st.integers(0, 10**7),
        "foreign_requests": st.floats(0, 1000),
        "foreign_kv_tokens": st.floats(0, 1e7),
    }
)


@given(works=st.lists(WORK, max_size=8), tiers=TIERS, prompt=st.integers(1, 10_000), reuse=st.floats(0, 1))
def test_the_scores_are_the_formula(works, tiers, prompt, reuse) -> None:
    """Term by term as the docstring has it, however it is worked out: to the last digits."""
    asked = held(prompt, **tiers)
    asked.expected_output = 300.0
    endpoints = [endpoint(slot, cost=Physics(quadratic=1e-8), **work) for slot, work in enumerate(works)]
    expected = []
    for one in endpoints:
        load, cost, match = one.load, one.cost, asked.matches.get(one.slot, NO_MATCH)
        new = max(1, prompt - match.expected_hit)
        prefill = new * (1e-3 + 1e-8 * (prompt - new / 2))
        running = load.requests + load.foreign_requests
        kv_tokens = load.kv_tokens + load.foreign_kv_tokens
        queued = 1e-3 * load.prefill_tokens + 1e-8 * load.prefill_attention - load.prefill_done
        fetched = 1.6e-6 * min(match.cpu, match.expected_hit) + 25.6e-6 * min(match.storage, match.expected_hit)
        seconds = [
            max(0.0, queued) if load.prefill_tokens else 0.0,
            prefill,
            fetched if match.gpu < match.expected_hit else 0.0,
            (1 + (load.prefill_tokens + new) / STEP_TOKENS) * (0.001 * running + cost.kv_token_seconds * kv_tokens),
            0.1 * prefill * running,
            0.1 * 300 * cost.kv_token_seconds * kv_tokens,
            reuse * prefill,
        ]
        expected.append(1 / (1 + sum(seconds)))
    assert scorer(reuse).score(asked, endpoints) == pytest.approx(expected, rel=1e-12, abs=0)


def test_a_request_without_a_decode_pays_for_none() -> None:
    work = {"requests": 1, "kv_tokens": 10_000}
    chat = cost(request(100, expected_output=200.0), **work)
    embedding = cost(request(100, expected_output=200.0, kind=Kind.EMBEDDING), **work)
    assert chat - embedding == pytest.approx(0.1 * 200 * 1e-6 * 10_000)


def test_the_score_is_absolute_and_half_at_one_second() -> None:
    one, other = endpoint(0), endpoint(1, requests=3, kv_tokens=100)
    asked = request(1000)
    assert scorer().score(asked, [one]) == pytest.approx([0.5])
    assert scorer().score(asked, [one, other])[0] == pytest.approx(0.5)
    assert scorer(second=3.0).score(asked, [one]) == pytest.approx([0.75])


def test_a_held_prefix_is_worth_its_prefill_and_no_more() -> None:
    asked = request(1000, held={0: 800})
    home, idle = endpoint(0, requests=2, kv_tokens=2000), endpoint(1)
    warm, cold = scorer().score(asked, [home, idle])
    assert warm > cold
    home.load.prefill_tokens = 5000
    warm, cold = scorer().score(asked, [home, idle])
    assert warm < cold


def test_a_slower_engine_costs_more() -> None:
    fast, slow = endpoint(0), endpoint(1, cost=Physics(prefill_token=2e-3))
    a, b = scorer().score(request(500), [fast, slow])
    assert a > b


@given(
    prompt=st.integers(1, 10**6),
    held=st.integers(0, 10**6),
    work=st.fixed_dictionaries(
        {
            "requests": st.integers(0, 1000),
            "prefill_tokens": st.integers(0, 10**7),
            "kv_tokens": st.integers(0, 10**8),
            "foreign_requests": st.floats(0, 1000),
            "foreign_kv_tokens": st.floats(0, 1e8),
        }
    ),
)
def test_scores_are_in_range_and_more_work_never_scores_higher(prompt, held, work) -> None:
    asked = request(prompt, held={0: held}, expected_output=100.0)
    (score,) = scorer().score(asked, [endpoint(0, **work)])
    assert 0 < score <= 1
    for name in work:
        (more,) = scorer().score(asked, [endpoint(0, **{**work, name: work[name] + 1000})])
        assert more <= score


@pytest.mark.parametrize(
    "bad",
    [{"reuse": 1.5}, {"reuse": float("nan")}, {"lam": -0.1}, {"lam": float("nan")}, {"second": 0.0}, {"cpu_fetch": -1}],
)
def test_parameters_have_ranges(bad) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        PlacementCost.Parameters(**bad)


def test_what_is_new_goes_to_the_engine_with_the_most_room() -> None:
    """A cache that is not full pushes nothing out; one that is fuller will sooner."""
    metrics = EngineMetrics(kv_capacity=10_000)
    fuller, emptier, full = (endpoint(slot, metrics=metrics) for slot in range(3))
    asked = request(1000)
    asked.matches = Matches(room={0: 4000, 1: 8000})
    one = scorer(reuse=0.5)
    # So much is free, less half of what the prompt takes: on average over its tokens.
    spared = [one.explain(asked, there)["displaced"] for there in (fuller, emptier, full)]
    assert spared == pytest.approx([0.5 * (1 - 0.35), 0.5 * (1 - 0.75), 0.5])
    a, b, c = one.score(asked, [fuller, emptier, full])
    assert b > a > c
    emptier.load.prefill_tokens = 100_000  # what is queued will take it
    assert one.explain(asked, emptier)["displaced"] == pytest.approx(0.5)


@pytest.mark.parametrize("capacity", [0, 100])
def test_room_in_an_engine_that_has_shrunk_since_is_none_or_all(capacity) -> None:
    """It was started anew, and has not been scraped or has another size now."""
    there = endpoint(0, metrics=EngineMetrics(kv_capacity=capacity))
    asked = request(1000)
    asked.matches = Matches(room={0: 4000})
    one = scorer(reuse=0.5)
    assert one.explain(asked, there)["displaced"] == pytest.approx(0.0 if capacity else 0.5)
    assert one.score(asked, [there]) == pytest.approx([1 / (1 + seconds(one, asked, there))])
