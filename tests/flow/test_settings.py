"""Covers: gateway/flow/settings.py."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.config.load import loads
from gateway.errors import ConfigError
from gateway.flow.settings import QueueSettings


def test_the_limits_of_a_queue_have_ranges() -> None:
    for name in ("window", "target", "max_wait", "patience", "kv"):
        with pytest.raises(ValueError, match=f"^{name} must be above 0"):
            QueueSettings(**{name: 0.0})
    for name in ("max_requests", "max_tokens", "max_bytes", "per_tenant", "step"):
        with pytest.raises(ValueError, match=f"^{name} must be at least 1"):
            QueueSettings(**{name: 0})
    with pytest.raises(ValueError, match=r"^kv must be above 0 and at most 1"):
        QueueSettings(kv=1.1)


@pytest.mark.parametrize(
    ("reserve", "message"),
    [
        ({"low": 0.1}, "'low' is none"),
        ({"1.5": 0.1}, "'1.5' is none"),
        ({"-1": 0.0}, "above 0 and below 1"),
        ({"-1": 1.0}, "above 0 and below 1"),
        ({"-1": 0.5, "0": 0.5}, "less than 1"),
    ],
)
def test_a_reserve_leaves_some_share_to_the_bands_above(reserve: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        QueueSettings(reserve=reserve)


def test_a_reserve_is_by_number() -> None:
    assert QueueSettings(reserve={"-1": 0.05, "0": 0.1}).reserved == {-1: 0.05, 0: 0.1}
    assert QueueSettings().reserved == {}


def loaded(queue: str) -> Any:
    text = f"models: [{{name: m, endpoints: [{{url: 'http://a:1'}}], queue: {queue}}}]"
    return loads(text, {}).models[0].queue


def test_a_model_has_a_queue_where_it_asks_for_one() -> None:
    assert loaded("null") is None
    assert loaded("{}") == QueueSettings()
    assert loaded("{max_wait: 10, reserve: {'-1': 0.05}}") == QueueSettings(max_wait=10.0, reserve={"-1": 0.05})
    with pytest.raises(
        ConfigError, match=r"plugins.yaml:1: models\[0\].queue.wait: unknown key; did you mean 'max_wait'"
    ):
        loaded("{wait: 1}")
