"""A leg as it goes to an engine, and what a failed one shows of its engine: reported as the table of failures says."""

from __future__ import annotations

from math import inf
from typing import Any, cast

import orjson
import pytest

from gateway.api.body import JsonBody
from gateway.api.routes import ROUTES
from gateway.api.settings import PassThroughSettings
from gateway.fleet.fleet import Fleet
from gateway.framework import Kind, Request
from gateway.proxy.serving.call import IncomingRequest
from gateway.proxy.serving.forward import Forwarder
from gateway.proxy.serving.stream_usage import StreamUsage
from gateway.proxy.upstream.legs import RULES, Cause, HealthReport, LegFailed, Rule
from gateway.proxy.upstream.send import Upstream
from tests.support.candidates import endpoint
from tests.support.scene import Scene


class Heard:
    """Stands for the fleet, and keeps what it is told."""

    def __init__(self) -> None:
        self.reports: list[tuple[Any, ...]] = []

    def report_refused(self, *told: object) -> None:
        self.reports.append(("refused", *told))

    def report_broken(self, *told: object) -> None:
        self.reports.append(("broken", *told))


@pytest.mark.parametrize(("cause", "rule"), RULES.items(), ids=str)
def test_the_fleet_hears_what_the_row_says(cause: Cause, rule: Rule, caplog: pytest.LogCaptureFixture) -> None:
    fleet, place = Heard(), endpoint()
    forwarder = Forwarder(
        cast(Fleet, fleet), Upstream.__new__(Upstream), PassThroughSettings(), cast(StreamUsage, None)
    )
    failure = LegFailed(cause, place, "detail")
    failure.waited = 3.0
    forwarder.failed(failure)
    assert (
        fleet.reports
        == {
            HealthReport.NOTHING: [],
            HealthReport.OURS: [],
            HealthReport.REFUSED: [("refused", place)],
            HealthReport.BROKEN: [("broken", place, str(cause), 3.0)],
        }[rule.health]
    )
    assert bool(caplog.records) == (rule.health is HealthReport.OURS)


@pytest.mark.parametrize(("adapter", "expected"), [(None, "as-served"), ("sql", "sql")], ids=["model", "adapter"])
async def test_a_leg_has_the_name_under_which_the_engine_serves_it(
    adapter: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An adapter has one name everywhere; a model may have another on each engine."""
    async with Scene() as scene:
        monkeypatch.setattr(scene.fleet, "served_name", lambda place, model: "as-served")
        [place, _], model = scene.endpoints, scene.runtime.model
        body = JsonBody(b'{"model": "alias", "prompt": "x"}', PassThroughSettings())
        request = Request("r", model, Kind.COMPLETION, 0.0, adapter=adapter)
        incoming = IncomingRequest("r", ROUTES["/v1/completions"], (), body, scene.runtime, request, 1, "", inf)
        leg = scene.forwarder.leg(incoming, place, body)
        assert orjson.loads(leg.body) == {"model": expected, "prompt": "x"}
