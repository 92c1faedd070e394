"""Metrics and the log as the one observer that a gateway is built with."""

from __future__ import annotations

from collections.abc import Iterable

from gateway.framework import Clock
from gateway.observability.logs import configure
from gateway.observability.metrics import Metrics
from gateway.observability.observers import Observers
from gateway.observability.request_log import RequestLog
from gateway.observability.settings import LogSettings


class Telemetry(Observers):
    """Routes the process's logging (see ``logs.configure``) and counts; ``close`` writes what is left of the log.

    ``secrets``: the configured keys, which no line may show.
    """

    def __init__(self, settings: LogSettings, clock: Clock, version: str, secrets: Iterable[str] = ()) -> None:
        self.metrics = Metrics(clock, version)
        self.logs = configure(settings, clock=clock, secrets=secrets)
        self.render = self.metrics.render
        self.render_in_slices = self.metrics.render_in_slices
        super().__init__(self.metrics, RequestLog(self.logs.logger, clock, requests=settings.requests))

    def close(self) -> None:
        self.logs.close()
