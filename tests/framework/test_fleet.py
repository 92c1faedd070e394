from __future__ import annotations

import pytest

from gateway.framework import Engine
from gateway.framework.fleet import EngineMetrics


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("http://10.0.0.1:8000", "10.0.0.1"),
        ("https://engine.example/v1", "engine.example"),
        ("http://[::1]:8000", "::1"),
        ("unix:///run/engine.sock", "127.0.0.1"),
    ],
)
def test_the_host_of_an_engines_other_ports(url: str, host: str) -> None:
    assert Engine(url, "a").host == host


def test_a_request_that_has_its_kv_fetches_no_more() -> None:
    stages = {"waiting_for_remote": 2, "completed_waiting": 3, "preparing": 1}
    assert EngineMetrics(kv_fetching=stages).fetches == 3
    assert EngineMetrics().fetches == 0
