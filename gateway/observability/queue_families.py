"""The series of models' queues: what waits, how full endpoints are, who was refused, and whom engines worked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gateway.core.queue_view import QueueView
from gateway.observability import buckets
from gateway.observability.instruments import Counter, Gauge, Histogram

NONE: tuple[QueueView, ...] = ()


class QueueFamilies:
    """``views``: gives each model's queue as it is, when metrics are shown. ``held_wait``, ``shed``, ``served``: as in
    ``Observer``."""

    def __init__(
        self,
        gauge: Callable[..., Gauge],
        counter: Callable[..., Counter],
        histogram: Callable[..., Histogram],
    ) -> None:
        """``gauge``, ``counter``, ``histogram``: make an instrument and show it among the others."""
        self.views: Callable[[], Iterable[QueueView]] = lambda: NONE
        gauge(
            *("queue_requests", "Requests that wait for an engine to have room.", "model", "band"),
            read=lambda: {(q.model, str(band)): count for q in self.views() for band, count in q.waiting.items()},
            over="sum",
        )
        gauge(
            *("queue_work_seconds", "Engine time that what waits would take, as predicted.", "model"),
            read=lambda: {(q.model,): q.seconds for q in self.views()},
            over="sum",
        )
        gauge(
            *("queue_oldest_seconds", "For how long the oldest of those has waited.", "model"),
            read=lambda: {(q.model,): q.oldest for q in self.views()},
        )
        gauge(
            *("endpoint_saturation", "How full an endpoint is; from 1 on it gets no more.", "model", "endpoint"),
            read=lambda: {(q.model, room.endpoint): room.saturation for q in self.views() for room in q.rooms},
        )
        gauge(
            "endpoint_full",
            "1 for the bound that an endpoint is full by; no series while it has room.",
            *("model", "endpoint", "reason"),
            read=lambda: {
                (q.model, room.endpoint, room.reason): 1 for q in self.views() for room in q.rooms if room.reason
            },
        )
        gauge(
            "endpoint_room_factor",
            "Below 1 where an endpoint's first tokens come later than predicted: its window is so much shorter.",
            *("model", "endpoint"),
            read=lambda: {(q.model, room.endpoint): room.factor for q in self.views() for room in q.rooms},
            over="min",
        )
        self.held_wait = histogram(
            "queue_held_seconds",
            "Wait for an engine to have room, of requests that had to wait, by how it ended.",
            buckets.QUEUE_WAIT,
            *("model", "band", "outcome"),
        )
        self.shed = counter("shed", "Requests that a model's queue refused.", "model", "band", "reason")
        self.served = counter(
            "tenant_engine_seconds",
            "Engine time of requests that have ended, as the cost model has it.",
            *("model", "tenant", "band"),
        )
