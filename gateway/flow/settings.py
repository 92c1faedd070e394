"""Limits of a model's requests in flight and in the queue."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FlowSettings:
    """``max_in_flight``: requests of one model past admission. ``max_queue``: requests that wait for admission.

    ``queue_timeout``: seconds that a request may wait; then it gets 429 with ``Retry-After``. The default limit is far
    above what engines run at once (vLLM: 256 sequences each): it bounds memory, not throughput.
    """

    max_in_flight: int = 4096
    max_queue: int = 1024
    queue_timeout: float = 30.0

    def __post_init__(self) -> None:
        if self.max_in_flight < 1:
            raise ValueError("max_in_flight must be at least 1")
        if self.max_queue < 0:
            raise ValueError("max_queue must be at least 0")
        if not self.queue_timeout > 0:
            raise ValueError("queue_timeout must be above 0 seconds")
