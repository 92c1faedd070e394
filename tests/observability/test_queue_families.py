"""The series of models' queues."""

from __future__ import annotations

from gateway.core.clock import ManualClock
from gateway.core.queue_view import EndpointRoom, QueueView
from gateway.observability.metrics import Metrics


def shown(metrics: Metrics) -> list[str]:
    text = b"".join(metrics.families.text()).decode()
    return [line for line in text.splitlines() if not line.startswith("#")]


def test_a_queue_is_shown_as_it_is_when_it_is_asked_for() -> None:
    metrics, views = (
        Metrics(ManualClock()),
        [QueueView("m", {0: 3, -1: 1}, 4.5, 2.0, [EndpointRoom("a", 1.5, "kv", 0.5)])],
    )
    metrics.read_queues_from(lambda: views)
    lines = shown(metrics)
    assert 'kvgate_queue_requests{band="0",model="m"} 3.0' in lines
    assert 'kvgate_queue_requests{band="-1",model="m"} 1.0' in lines
    assert 'kvgate_queue_work_seconds{model="m"} 4.5' in lines
    assert 'kvgate_queue_oldest_seconds{model="m"} 2.0' in lines
    assert 'kvgate_endpoint_saturation{endpoint="a",model="m"} 1.5' in lines
    assert 'kvgate_endpoint_full{endpoint="a",model="m",reason="kv"} 1.0' in lines
    assert 'kvgate_endpoint_room_factor{endpoint="a",model="m"} 0.5' in lines
    views[:] = [QueueView("m", {}, 0.0, 0.0, [EndpointRoom("a", 0.5, "", 1.0)])]
    assert not [line for line in shown(metrics) if line.startswith(("kvgate_queue_requests", "kvgate_endpoint_full"))]


def test_waits_refusals_and_engine_time_are_counted() -> None:
    metrics = Metrics(ManualClock())
    metrics.held("m", 0, "placed", 0.3)
    metrics.shed("m", -1, "late")
    metrics.served("m", "red", 0, 1.5)
    metrics.served("m", "red", 0, 1.0)
    lines = shown(metrics)
    assert 'kvgate_queue_held_seconds_count{band="0",model="m",outcome="placed"} 1.0' in lines
    assert 'kvgate_shed_total{band="-1",model="m",reason="late"} 1.0' in lines
    assert 'kvgate_tenant_engine_seconds_total{band="0",model="m",tenant="red"} 2.5' in lines
