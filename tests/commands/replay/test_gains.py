"""What is better over several cells, and what must not get worse."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.commands.replay.gains import Keep, certainty, gain, keep, seeds_needed
from gateway.commands.replay.statistics import METRICS, Interval, difference, interval
from tests.commands.replay.runs import summary

GOODPUT, TTFT = METRICS["goodput"], METRICS["ttft_mean"]


def runs(name: str, *cells: list[float]) -> list[list]:
    return [[summary(seed=seed, **{name: value}) for seed, value in enumerate(cell)] for cell in cells]


def test_in_one_cell_it_is_the_difference() -> None:
    ours, theirs = runs("goodput", [0.6, 0.7, 0.8]), runs("goodput", [0.5, 0.55, 0.7])
    assert gain(GOODPUT, ours, theirs) == difference(GOODPUT, ours[0], theirs[0])
    ours, theirs = runs("ttft_mean", [1.0, 2.0]), runs("ttft_mean", [2.0, 4.0])
    assert gain(TTFT, ours, theirs).mid == pytest.approx(1.0)  # half the time is better by as much again


def test_cells_count_the_same_and_seeds_are_paired() -> None:
    ours = runs("goodput", [0.6, 0.7], [0.1, 0.3])
    theirs = runs("goodput", [0.5, 0.6], [0.3, 0.3])
    found = gain(GOODPUT, ours, theirs)  # -0.05 and +0.05
    assert found.mid == pytest.approx(0.0)
    assert found.high == pytest.approx(interval([-0.05, 0.05]).high)


def test_a_figure_of_0_tells_nothing() -> None:
    assert math.isnan(gain(TTFT, runs("ttft_mean", [0.0]), runs("ttft_mean", [1.0])).mid)


@given(st.integers(2, 12), st.floats(0.01, 10.0), st.floats(0.01, 10.0))
def test_so_many_seeds_are_needed_as_would_do(seeds, mid, deviation) -> None:
    half = certainty(seeds) * deviation
    needed = seeds_needed(Interval(mid, mid - half, mid + half), seeds)
    if needed is None:
        assert certainty(999) * deviation > mid * 0.99
    else:
        assert certainty(needed) * deviation < mid * 1.0001
        assert needed == 2 or certainty(needed - 1) * deviation >= mid * 0.9999


def test_no_seeds_make_a_loss_a_gain() -> None:
    assert seeds_needed(Interval(-0.1, -0.2, 0.0), 3) is None
    assert seeds_needed(Interval(0.1, -math.inf, math.inf), 1) is None


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("p99 TTFT", Keep(METRICS["ttft_p99"])),
        ("ttft_p99 = 5 %", Keep(METRICS["ttft_p99"], 0.05)),
        ("Hit rate=1pp", Keep(METRICS["hit_rate"], 0.01)),
        ("goodput=0", Keep(GOODPUT, 0.0)),
    ],
)
def test_what_is_kept_is_read(text, kept) -> None:
    assert keep(text) == kept


def test_the_worst_cell_counts() -> None:
    ours = runs("ttft_mean", [1.01, 1.01], [1.10, 1.10], [0.5, 0.5])
    given_ = runs("ttft_mean", [1.0, 1.0], [1.0, 1.0], [1.0, 1.0])
    assert Keep(TTFT, 0.02).worst(ours, given_) == (pytest.approx(0.10), 1)
    assert not Keep(TTFT, 0.02).kept(ours, given_)
    assert Keep(TTFT, 0.11).kept(ours, given_)
    assert Keep(GOODPUT).kept(runs("goodput", [0.49]), runs("goodput", [0.5]))
    assert not Keep(GOODPUT).kept(runs("goodput", [0.47]), runs("goodput", [0.5]))
