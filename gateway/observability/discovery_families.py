"""The series of the sources of endpoints."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gateway.core.source_view import SourceView
from gateway.observability.instruments import Gauge, Labels

OF_SOURCE = ("model", "source")


class DiscoveryFamilies:
    """``sources``: gives what each has told when metrics are shown."""

    def __init__(self, gauge: Callable[..., Gauge]) -> None:
        """``gauge``: makes one and shows it among the others."""
        self.sources: Callable[[], Sequence[SourceView]] = list
        gauge(
            *("discovery_up", "1 while a source of endpoints can be read.", *OF_SOURCE),
            read=lambda: self._each(lambda one: one.problem is None),
            over="min",
        )
        gauge(
            *("discovery_endpoints", "Endpoints in the last list of a source.", *OF_SOURCE),
            read=lambda: self._each(lambda one: len(one.endpoints)),
            over="lead",
        )
        gauge(
            *("discovery_wrong_entries", "Entries of the last list of a source that are left out.", *OF_SOURCE),
            read=lambda: self._each(lambda one: len(one.wrong)),
            over="lead",
        )
        gauge(
            *("discovery_changed_timestamp_seconds", "When a source last told another list; 0: never.", *OF_SOURCE),
            read=lambda: self._each(lambda one: one.changed_at or 0.0),
            over="lead",
        )

    def _each(self, value: Callable[[SourceView], float]) -> dict[Labels, float]:
        return {(one.model, one.source): value(one) for one in self.sources()}
