from __future__ import annotations

from array import array
from math import nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.clock import ManualClock
from gateway.core.observer import NULL_OBSERVER
from gateway.core.prompt import Prompt
from gateway.kvcache.index.cache_index import CacheIndex
from gateway.kvcache.index.kept_estimates import KeptEstimate, KeptEstimates, packed, unpacked
from gateway.kvcache.settings import CacheSettings
from tests.kvcache.conftest import endpoint, ids, tokens_held

RUNS = st.lists(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=64), max_size=5)


@given(RUNS)
def test_runs_are_read_as_they_were_packed(runs: list[list[int]]) -> None:
    assert [list(run) for run in unpacked(packed(array("Q", run) for run in runs))] == runs


@given(st.binary(max_size=100))
def test_any_bytes_are_survived(data: bytes) -> None:
    assert sum(map(len, unpacked(data))) <= len(data)


@pytest.mark.parametrize("wrong", [{"believed": 0.0}, {"believed": 1.5}, {"believed": nan}, {"started": nan}])
def test_figures_of_a_file_are_checked(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="figures"):
        KeptEstimate(**{"name": "e", "started": None, "believed": 1.0, "runs": b""} | wrong)


def index_of(*slots: int, events: bool = False, started: float | None = 5.0) -> CacheIndex:
    index = CacheIndex(CacheSettings(), "m", ManualClock(), NULL_OBSERVER)
    for slot in slots:
        one = endpoint(slot, capacity=1600)
        one.engine.up, one.engine.started = True, started
        index.add(one, events)
    return index


@pytest.fixture
def kept() -> KeptEstimates:
    """Of a prompt of 100 blocks on the first of two endpoints, and of another one on the second."""
    index = index_of(0, 1)
    for slot, prompt in ((0, ids(*range(100))), (1, ids(*range(200, 230)))):
        index.placed(index.keys(Prompt(prompt, len(prompt), True)), endpoint(slot, capacity=1600))
    return index.keep_estimates()


def test_another_process_believes_what_was_kept(kept: KeptEstimates) -> None:
    index = index_of(0, 1)
    assert index.recall_estimates(kept) == 2
    assert tokens_held(index, 0, ids(*range(100))) == 1600
    assert tokens_held(index, 1, ids(*range(200, 230))) == 480
    assert tokens_held(index, 1, ids(*range(100))) == 0
    assert index.keep_estimates() == kept


def test_an_engine_that_is_another_process_holds_nothing(kept: KeptEstimates) -> None:
    assert index_of(0, 1, started=6.0).recall_estimates(kept) == 0


def test_endpoints_that_are_gone_are_no_obstacle(kept: KeptEstimates) -> None:
    index = index_of(1, 2)
    assert index.recall_estimates(kept) == 1


def test_blocks_of_another_size_are_not_known(kept: KeptEstimates) -> None:
    assert index_of(0, 1).recall_estimates(KeptEstimates(32, kept.endpoints)) == 0


def test_where_engines_report_what_they_hold_nothing_is_kept_or_recalled(kept: KeptEstimates) -> None:
    index = index_of(0, 1, events=True)
    assert index.recall_estimates(kept) == 0
    prompt = ids(1, 2, 3)
    index.placed(index.keys(Prompt(prompt, len(prompt), True)), endpoint(0, capacity=1600))
    assert index.keep_estimates().endpoints == ()


def test_what_is_known_already_is_not_mixed_with_it(kept: KeptEstimates) -> None:
    index = index_of(0, 1)
    prompt = ids(1, 2, 3)
    index.placed(index.keys(Prompt(prompt, len(prompt), True)), endpoint(0, capacity=1600))
    assert index.recall_estimates(kept) == 0
