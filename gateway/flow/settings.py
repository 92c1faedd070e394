"""Limits of a model's requests in flight, and the queue in which they wait until an engine has room."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

FAIR = "fair"
"""The plugin that orders a queue where none is named; one of the default plugins."""


@dataclass(frozen=True, slots=True)
class FlowSettings:
    """``max_in_flight``: requests of one model past admission. ``max_queue``: requests that wait for admission.

    ``queue_timeout``: seconds that a request may wait; then it gets 429 with ``Retry-After``. The default limit is far
    above what engines run at once (vLLM: 256 sequences each): it bounds memory, not throughput.

    ``no_endpoint_timeout``: seconds from its arrival for which a request stands by where no endpoint is usable; 0 or
    None: it gets 503 at once. At most ``max_queue`` stand by.
    """

    max_in_flight: int = 4096
    max_queue: int = 1024
    queue_timeout: float = 30.0
    no_endpoint_timeout: float | None = None

    def __post_init__(self) -> None:
        if self.max_in_flight < 1:
            raise ValueError("max_in_flight must be at least 1")
        if self.max_queue < 0:
            raise ValueError("max_queue must be at least 0")
        if not self.queue_timeout > 0:
            raise ValueError("queue_timeout must be above 0 seconds")
        if self.no_endpoint_timeout is not None and not self.no_endpoint_timeout >= 0:
            raise ValueError("no_endpoint_timeout must be at least 0 seconds")


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """The queue of a model: a request waits until the endpoint that it is planned for has room.

    ``order``: the plugin that says who is next. An endpoint has room for a request while all of these hold:

    - ``window``: seconds of prompts that are queued there are fewer. An engine computes prompts in order, so what is
      queued there can be ordered no more. 0.3 s keep it busy until the next is placed.
    - ``kv``: with this request, its tokens are at most this share of its KV memory. Beyond 0.9 vLLM begins to preempt.
    - ``step``: with this request, a decode step takes at most this many empty steps, or the request's own objective for
      the time between tokens. At 5 an engine has 83 % of its decode throughput: what is beyond adds mostly time.

    ``adapt``: an endpoint's window follows what its first tokens take beside what was predicted.

    ``target``: seconds in which a request without an objective should be placed. Past that it is late: behind those of
    its tenant that are not. ``max_wait``: seconds after which a request that waits is refused. ``patience``: seconds
    after which it is planned anew, maybe for another endpoint: twice the target, so that few are.

    ``max_requests``, ``max_tokens``, ``max_bytes``: of all that wait; ``per_tenant``: requests of one tenant. Beyond
    any of them one is refused. ``max_bytes`` is half of ``listen.max_held``.

    ``reserve``: band -> share of the engines' seconds, 0..1, that it gets although a higher one has work waiting.
    """

    order: str = FAIR
    window: float = 0.3
    kv: float = 0.9
    step: float = 5.0
    target: float = 2.0
    max_wait: float = 5.0
    patience: float = 4.0
    adapt: bool = True
    max_requests: int = 1024
    max_tokens: int = 2**23
    max_bytes: int = 2**28
    per_tenant: int = 256
    reserve: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("window", "target", "max_wait", "patience"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0 seconds")
        if not 0 < self.kv <= 1:
            raise ValueError("kv must be above 0 and at most 1")
        if not self.step >= 1:
            raise ValueError("step must be at least 1: a step with a request takes no less than an empty one")
        for name in ("max_requests", "max_tokens", "max_bytes", "per_tenant"):
            if not getattr(self, name) >= 1:
                raise ValueError(f"{name} must be at least 1")
        for band, share in self.reserve.items():
            if not re.fullmatch(r"-?\d{1,9}", band):
                raise ValueError(f"reserve must be by band, an integer in quotes: {band!r} is none")
            if not 0 < share < 1:
                raise ValueError(f"reserve of band {band} must be above 0 and below 1")
        if not sum(self.reserve.values()) < 1:
            raise ValueError("reserve must leave some share: its shares must add up to less than 1")

    @property
    def reserved(self) -> dict[int, float]:
        """``reserve``, by the number of the band."""
        return {int(band): share for band, share in self.reserve.items()}
