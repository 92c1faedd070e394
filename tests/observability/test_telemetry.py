from __future__ import annotations

import logging

import orjson

from gateway.observability.settings import LogSettings
from gateway.observability.telemetry import Telemetry


def test_a_request_is_counted_and_logged(clock, answered, capfd) -> None:
    telemetry = Telemetry(LogSettings(format="json"), clock, "1.2.3", secrets=["conf1gured"])
    telemetry.settled(answered)
    telemetry.queued("m", 2)
    logging.getLogger("kvgate.x").warning("key conf1gured")
    body, _ = telemetry.render()
    telemetry.close()
    assert b'kvgate_requests_total{model="m",outcome="ok"} 1.0' in body
    assert b'kvgate_queued_requests{model="m"} 2.0' in body
    assert b'kvgate_build_info{version="1.2.3"} 1.0' in body
    request, warning = map(orjson.loads, capfd.readouterr().err.splitlines())
    assert (request["event"], request["endpoint"]) == ("request", "a")
    assert warning["event"] == "key ***"


def test_what_only_metrics_count_costs_no_detour(clock) -> None:
    telemetry = Telemetry(LogSettings(), clock, "1")
    assert telemetry.decided == telemetry.metrics.decided
    telemetry.close()
