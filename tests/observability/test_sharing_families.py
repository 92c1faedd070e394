"""The series of replicas."""

from __future__ import annotations

from gateway.core.clock import ManualClock
from gateway.observability.metrics import Metrics


def shown(metrics: Metrics) -> list[str]:
    text = b"".join(metrics.families.text()).decode()
    return [line for line in text.splitlines() if line.startswith(("kvgate_peers", "kvgate_bus"))]


def test_who_shares_nothing_shows_nothing() -> None:
    assert shown(Metrics(ManualClock())) == []


def test_replicas_are_shown_as_they_are_when_it_is_asked_for() -> None:
    metrics = Metrics(ManualClock())
    connected = True
    metrics.read_replicas_from(peers=lambda: {"fresh": 2, "stale": 0}, connected=lambda: connected)
    metrics.bus_dropped("old")
    metrics.bus_dropped("old")
    assert shown(metrics) == [
        *('kvgate_peers{state="fresh"} 2.0', 'kvgate_peers{state="stale"} 0.0', "kvgate_bus_connected 1.0"),
        'kvgate_bus_dropped_total{reason="old"} 2.0',
    ]
    connected = False
    assert "kvgate_bus_connected 0.0" in shown(metrics)
