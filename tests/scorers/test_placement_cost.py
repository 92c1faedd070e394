from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.framework import Kind
from gateway.framework.fleet import EngineMetrics
from gateway.framework.match import Match, Matches, Source
from gateway.framework.request import Slo
from scorers.placement_cost import PlacementCost
from tests.support.candidates import Physics, context, endpoint, request


def scorer(reuse: float = 0.0, lam: float | None = 0.1, **parameters) -> PlacementCost:
    return PlacementCost(PlacementCost.Parameters(reuse=reuse, lam=lam, **parameters), context())


ATTENTION = Physics(prefill_quadratic=1e-6, step=0.0, step_tokens=1000)
"""With 1 us for each pair of a new token and one before it, and steps that read no weights."""


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
    steps = 1 + (500 + 400) / 1000
    running, kv = 4 + 2.5, 3000 + 1000
    expected = (
        0.5
        + 500 * 300e-6  # queued
        - 0.2  # of which so much is done
        + prefill
        + steps * (0.001 * running + 1e-6 * kv)  # what the batch adds to each step
        + 0.1 * prefill * running  # what the batch suffers
        + 0.1 * 200 * (0.001 * running + 1e-6 * kv)  # what the own answer takes beside them
    )
    work = {"requests": 4, "prefill_tokens": 500, "kv_tokens": 3000}
    work |= {"prefill_attention": 500 * 300.0, "prefill_done": 0.2}
    assert cost(asked, **work, foreign_requests=2.5, foreign_kv_tokens=1000.0) == pytest.approx(expected)


def test_who_was_stalled_lately_is_stalled_at_a_higher_price_up_to_a_bound() -> None:
    """Where the objective for the time between tokens was missed already, another stall makes no difference."""
    asked = request(1000)
    work = {"requests": 10, "cost": Physics()}

    def stall(share: float) -> float:
        return scorer().explain(asked, endpoint(0, share=share, **work))["stall"]

    assert stall(0.0) == pytest.approx(0.1 * 1.0 * 10)
    assert stall(0.25) == pytest.approx(1.25 * stall(0.0))
    assert stall(0.5) == stall(3.0) == pytest.approx(1.5 * stall(0.0))


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
    there = endpoint(0, cost=Physics(cpu_fetch=1e-4, storage_fetch=5e-4))
    on_gpu = seconds(scorer(), held(1000, gpu=800), there)
    below = seconds(scorer(), held(1000, gpu=100, cpu=500, storage=200), there)
    assert below - on_gpu == pytest.approx(500e-4 + 200 * 5e-4)
    cold = seconds(scorer(), held(1000), there)
    assert on_gpu < below < cold
    # Less than a block is held: nothing is served from it, and nothing fetched.
    unusable = request(1000)
    unusable.matches = Matches({0: Match(cpu=10, expected_hit=0)})
    assert seconds(scorer(), unusable, there) == cold


def test_a_copy_on_the_cpu_is_worth_nearly_its_prefill() -> None:
    asked = request(10_000)
    asked.matches = Matches({slot: Match(**{tier: 9984}, expected_hit=9984) for slot, tier in ((0, "cpu"), (1, "gpu"))})
    cpu, gpu, cold = scorer().score(asked, [endpoint(slot) for slot in range(3)])
    assert gpu > cpu > 0.9 > 0.1 > cold


@given(
    tiers=TIERS,
    prompt=st.integers(1, 10_000),
    running=st.integers(0, 300),
    share=st.floats(0, 2),
    kind=st.sampled_from(Kind),
    ahead=st.dictionaries(st.integers(0, 1), st.floats(0, 100)),
)
def test_the_terms_that_are_told_are_what_the_score_is_made_of(tiers, prompt, running, share, kind, ahead) -> None:
    asked, there = (
        held(prompt, **tiers),
        endpoint(0, cost=ATTENTION, requests=running, prefill_tokens=300, kv_tokens=9000, share=share),
    )
    asked.kind, asked.expected_output, asked.ahead = kind, 100.0, ahead
    one = scorer(reuse=0.5)
    terms = one.explain(asked, there)
    assert tuple(terms) == (
        "overhead",
        "queued",
        "prefill",
        "fetch",
        "batch",
        "planned",
        "stall",
        "decode",
        "displaced",
    )
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


SLOS = st.none() | st.builds(Slo, ttft=st.floats(0.01, 100), tpot=st.floats(1e-3, 1))


@given(works=st.lists(WORK, max_size=8), tiers=TIERS, prompt=st.integers(1, 10_000), reuse=st.floats(0, 1), slo=SLOS)
def test_the_scores_are_the_formula(works, tiers, prompt, reuse, slo) -> None:
    """As the docstring has it, with the time to a first token by the one formula of it, however the loop works it out:
    to the last digits."""
    asked = held(prompt, **tiers)
    asked.expected_output, asked.slo = 300.0, slo
    weight = 0.5 if slo is None else min(2.0, max(0.1, 4 * slo.ttft / (300 * slo.tpot)))
    physics = Physics(prefill_quadratic=1e-8, overhead=0.01)
    endpoints = [endpoint(slot, cost=physics, **work) for slot, work in enumerate(works)]
    expected = []
    for one in endpoints:
        load, cost = one.load, one.cost.scalars
        first = cost.first_token(load.sums(0.0), asked.matches[one.slot], prompt)
        running, kv_tokens = load.requests + load.foreign_requests, load.kv_tokens + load.foreign_kv_tokens
        others = weight * first.prefill * running + weight * 300 * cost.step_seconds(running, kv_tokens)
        expected.append(1 / (1 + first.seconds + others + reuse * first.prefill))
    assert scorer(reuse, lam=None).score(asked, endpoints) == pytest.approx(expected, rel=1e-12, abs=0)


def test_work_that_waits_at_the_gateway_to_be_placed_first_is_waited_for() -> None:
    here, there = endpoint(0), endpoint(1, prefill_tokens=200)
    asked, one = request(1000), scorer()
    asked.ahead = {0: 0.5}
    assert one.explain(asked, here)["planned"] == 0.5
    assert one.explain(asked, there)["planned"] == 0.0
    a, b = one.score(asked, [here, there])
    assert a < b
    asked.ahead = {0: 0.1}
    a, b = one.score(asked, [here, there])
    assert a > b


def test_while_anything_waits_more_than_a_hundred_running_requests_stall_no_more_than_a_hundred() -> None:
    asked, one = request(1000), scorer()
    few, many = (endpoint(slot, requests=running, kv_tokens=1000) for slot, running in enumerate((100, 300)))
    calm = [one.explain(asked, each)["stall"] for each in (few, many)]
    assert calm[1] == pytest.approx(3 * calm[0])
    asked.ahead = {5: 0.0}
    assert [one.explain(asked, each)["stall"] for each in (few, many)] == pytest.approx([calm[0]] * 2)


def test_of_engines_that_are_not_alike_a_long_answer_goes_to_the_faster() -> None:
    fast, slow = endpoint(0, requests=8, kv_tokens=8000), endpoint(1, cost=Physics(step=0.04))
    one = scorer(lam=None)
    quick, lengthy = request(10, expected_output=1.0), request(10, expected_output=400.0)
    a, b = one.score(quick, [fast, slow])
    assert b > a
    a, b = one.score(lengthy, [fast, slow])
    assert a > b


def test_a_request_without_a_decode_pays_for_none() -> None:
    work = {"requests": 1, "kv_tokens": 10_000}
    chat = cost(request(100, expected_output=200.0), **work)
    embedding = cost(request(100, expected_output=200.0, kind=Kind.EMBEDDING), **work)
    assert chat - embedding == pytest.approx(0.1 * 200 * (0.001 + 1e-6 * 10_000))


def test_the_score_is_absolute_and_half_at_one_second() -> None:
    one, other = endpoint(0), endpoint(1, requests=3, kv_tokens=100)
    asked = request(1000, expected_output=0.0)
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
    [{"reuse": 1.5}, {"reuse": float("nan")}, {"lam": -0.1}, {"lam": float("nan")}, {"second": 0.0}],
)
def test_parameters_have_ranges(bad) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        PlacementCost.Parameters(**bad)


def test_what_is_new_goes_to_the_engine_with_the_most_room() -> None:
    """A cache that is not full pushes nothing out; one that is fuller will sooner."""
    metrics = EngineMetrics(kv_capacity=10_000)
    fuller, emptier, full = (endpoint(slot, metrics=metrics) for slot in range(3))
    asked = request(1000)
    asked.matches.room = {0: 4000, 1: 8000}
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
    asked.matches.room = {0: 4000}
    one = scorer(reuse=0.5)
    assert one.explain(asked, there)["displaced"] == pytest.approx(0.0 if capacity else 0.5)
    assert one.score(asked, [there]) == pytest.approx([1 / (1 + seconds(one, asked, there))])
