from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.commands.demo.drive import Result, quantile


@given(st.lists(st.floats(0, 100), min_size=1, max_size=50), st.floats(0, 1))
def test_a_quantile_is_a_value_that_enough_do_not_exceed(values, q) -> None:
    found = quantile(values, q)
    assert found in values
    assert sum(value <= found for value in values) >= q * len(values)
    assert sum(value < found for value in values) <= q * len(values)


def test_known_quantiles() -> None:
    values = [float(value) for value in range(1, 101)]
    assert [quantile(values, q) for q in (0.5, 0.9, 0.99, 1.0)] == [50.0, 90.0, 99.0, 100.0]
    assert math.isnan(quantile([], 0.5))


def test_a_result_as_json() -> None:
    result = Result("x", 3, 1, 1000, 250, (0.3, 0.1), 2.0)
    assert result.cached_share == pytest.approx(0.25)
    assert json.loads(json.dumps(result.as_json())) == {
        "name": "x",
        "requests": 3,
        "errors": 1,
        "prompt_tokens": 1000,
        "cached_tokens": 250,
        "cached_share": 0.25,
        "ttft_p50": 0.1,
        "ttft_p90": 0.3,
        "ttft_p99": 0.3,
        "seconds": 2.0,
    }


def test_nothing_asked_is_nothing_cached() -> None:
    assert Result("x", 0, 0, 0, 0, (), 0.0).cached_share == 0.0
