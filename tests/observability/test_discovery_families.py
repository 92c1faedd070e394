"""The series of sources of endpoints."""

from __future__ import annotations

from gateway.core.source_view import SourceView
from gateway.observability.metrics import Metrics


async def test_each_source_has_its_series(clock) -> None:
    metrics = Metrics(clock, "1")
    up = SourceView("m", "file x", None, 7.0, ["http://a:1", "http://b:1"], ["c is wrong"])
    metrics.read_sources_from(lambda: [up, SourceView("m", "dns y", "timeout", None, [], [])])
    text = (await metrics.render())[0].decode()
    for line in (
        'kvgate_discovery_up{model="m",source="file x"} 1.0',
        'kvgate_discovery_up{model="m",source="dns y"} 0.0',
        'kvgate_discovery_endpoints{model="m",source="file x"} 2.0',
        'kvgate_discovery_wrong_entries{model="m",source="file x"} 1.0',
        'kvgate_discovery_changed_timestamp_seconds{model="m",source="file x"} 7.0',
        'kvgate_discovery_changed_timestamp_seconds{model="m",source="dns y"} 0.0',
    ):
        assert line in text.splitlines()
