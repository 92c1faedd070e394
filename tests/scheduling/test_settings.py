from __future__ import annotations

import math

import pytest

from gateway.scheduling.settings import WeightedScorer


@pytest.mark.parametrize("weight", [-0.1, math.nan, math.inf])
def test_a_weight_is_a_number_of_at_least_zero(weight) -> None:
    with pytest.raises(ValueError, match="weight must be a number of at least 0"):
        WeightedScorer(plugin="x", weight=weight)


def test_a_weight_of_zero_switches_a_scorer_off() -> None:
    assert WeightedScorer(plugin="x", weight=0).weight == 0
