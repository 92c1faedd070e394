"""What engines with ranks answer, and what the fleet makes of them."""

from __future__ import annotations

from gateway.fleet.fleet import Fleet
from gateway.framework.fleet import Model


def ranks(fleet: Fleet, model: Model) -> list[int | None]:
    return [endpoint.rank for endpoint in fleet.endpoints(model)]


def text(*labels: str) -> bytes:
    """A scrape with a rank for each engine label."""
    return b"".join(b'vllm:num_requests_running{engine="%s"} 1\n' % label.encode() for label in labels)


def sources(*ports: int, first: int = 0) -> dict[str, dict[str, str]]:
    """``/kv_event_sources``: a port for each rank, whose names begin at ``first``."""
    return {str(first + rank): {"endpoint": f"tcp://*:{port}"} for rank, port in enumerate(ports)}
