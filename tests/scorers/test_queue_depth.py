from __future__ import annotations

import pytest

from gateway.framework.fleet import EngineMetrics
from scorers.queue_depth import QueueDepth
from tests.support.candidates import context, endpoint, request


def score(waiting=0, **work) -> float:
    scorer = QueueDepth(QueueDepth.Parameters(half=4.0, request_tokens=1000), context())
    one = endpoint(metrics=EngineMetrics(at=1.0, waiting=waiting), **work)
    return scorer.score(request(), [one])[0]


def test_nothing_waiting_is_one_and_half_waiting_is_a_half() -> None:
    assert score() == 1.0
    assert score(waiting=4) == 0.5
    assert score(waiting=12) == 0.25


def test_our_own_uncomputed_prompts_count_at_once() -> None:
    assert score(prefill_tokens=4000) == 0.5


def test_the_two_views_overlap_and_are_not_added() -> None:
    assert score(waiting=4, prefill_tokens=4000) == 0.5
    assert score(waiting=4, prefill_tokens=12_000) == 0.25


def test_an_endpoint_never_scraped_is_judged_by_the_ledger() -> None:
    scorer = QueueDepth(QueueDepth.Parameters(half=4.0, request_tokens=1000), context())
    assert scorer.score(request(), [endpoint(), endpoint(prefill_tokens=4000)]) == [1.0, 0.5]


@pytest.mark.parametrize("bad", [{"half": 0.0}, {"request_tokens": 0}])
def test_parameters_have_ranges(bad) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        QueueDepth.Parameters(**bad)


def test_relative_is_llm_d_s_stretch_over_the_candidates() -> None:
    relative = QueueDepth(QueueDepth.Parameters(relative=True), context())
    fleet = [endpoint(slot, metrics=EngineMetrics(at=1.0, waiting=waiting)) for slot, waiting in enumerate((2, 7, 4))]
    assert relative.score(request(), fleet) == pytest.approx([1.0, 0.0, 0.6])
    assert relative.score(request(), fleet[:1]) == [1.0]
    assert relative.score(request(), []) == []


def test_a_limit_is_llm_d_s_straight_line() -> None:
    straight = QueueDepth(QueueDepth.Parameters(limit=128), context())
    fleet = [
        endpoint(slot, metrics=EngineMetrics(at=1.0, waiting=waiting)) for slot, waiting in enumerate((0, 32, 128, 500))
    ]
    assert straight.score(request(), fleet) == [1.0, 0.75, 0.0, 0.0]


@pytest.mark.parametrize("bad", [{"limit": 0.0}, {"limit": 8.0, "relative": True}])
def test_a_limit_is_above_0_and_stands_alone(bad) -> None:
    with pytest.raises(ValueError, match="limit"):
        QueueDepth.Parameters(**bad)
