"""What a failed leg shows of its engine is reported as the table of failures says."""

from __future__ import annotations

from typing import Any, cast

import pytest

from gateway.api.settings import PassSettings
from gateway.fleet.fleet import Fleet
from gateway.proxy.serving.forward import Forwarder
from gateway.proxy.serving.stream_usage import StreamUsage
from gateway.proxy.upstream.legs import RULES, Cause, Health, LegFailed, Rule
from gateway.proxy.upstream.send import Upstream
from tests.support.candidates import endpoint


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
    forwarder = Forwarder(cast(Fleet, fleet), Upstream.__new__(Upstream), PassSettings(), cast(StreamUsage, None))
    failure = LegFailed(cause, place, "detail")
    failure.waited = 3.0
    forwarder.failed(failure)
    assert (
        fleet.reports
        == {
            Health.NOTHING: [],
            Health.OURS: [],
            Health.REFUSED: [("refused", place)],
            Health.BROKEN: [("broken", place, str(cause), 3.0)],
        }[rule.health]
    )
    assert bool(caplog.records) == (rule.health is Health.OURS)
