from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.fleet.engine import NOTHING, CacheCounters, CacheLookups
from gateway.framework.fleet import EngineMetrics


def told(queries: float, hits: float = 0.0, external: tuple[float, float] = (0.0, 0.0)) -> EngineMetrics:
    return EngineMetrics(
        prefix_queries=queries, prefix_hits=hits, external_queries=external[0], external_hits=external[1]
    )


def test_what_was_before_the_first_look_is_not_shown() -> None:
    lookups = CacheCounters()
    assert lookups.update(told(1000, 900, (50, 40))) == (NOTHING, NOTHING)
    assert lookups.update(told(1100, 950, (60, 41))) == (CacheLookups(100, 50), CacheLookups(10, 1))
    assert lookups.update(told(1100, 950, (60, 41))) == (NOTHING, NOTHING)


def test_counters_that_begin_anew_are_all_new() -> None:
    lookups = CacheCounters()
    lookups.update(told(1000, 900))
    assert lookups.update(told(30, 20))[0] == CacheLookups(30, 20)
    lookups.restart()
    assert lookups.update(told(40, 25))[0] == CacheLookups(40, 25), "another process, though it counts more already"


def test_an_engine_that_was_never_seen_has_nothing_to_begin_anew() -> None:
    lookups = CacheCounters()
    lookups.restart()
    assert lookups.update(told(1000, 900)) == (NOTHING, NOTHING)


@given(st.lists(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=5), max_size=5))
def test_all_that_is_looked_at_is_counted_once_over_any_restarts(lives: list[list[tuple[int, int]]]) -> None:
    """Each life of the engine is a list of what it did between two looks."""
    lookups, queried, hit = CacheCounters(), 0.0, 0.0
    lookups.update(told(0))
    for life in lives:
        lookups.restart()
        so_far = [0, 0]
        for more, found in life:
            so_far = [so_far[0] + more, so_far[1] + found]
            grown = lookups.update(told(*so_far))[0]
            queried, hit = queried + grown.queried, hit + grown.hit
    assert (queried, hit) == (sum(q for life in lives for q, _ in life), sum(h for life in lives for _, h in life))
