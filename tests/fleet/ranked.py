"""What engines with ranks answer, and what the fleet makes of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiohttp import web

from gateway.fleet.fleet import Fleet
from gateway.framework import Model


def ranks(fleet: Fleet, model: Model) -> list[int | None]:
    return [endpoint.rank for endpoint in fleet.endpoints(model)]


def text(*labels: str) -> bytes:
    """A scrape with a rank for each engine label."""
    return b"".join(b'vllm:num_requests_running{engine="%s"} 1\n' % label.encode() for label in labels)


def sources(*ports: int, first: int = 0) -> dict[str, dict[str, str]]:
    """``/kv_event_sources``: a port for each rank, whose names begin at ``first``."""
    return {str(first + rank): {"endpoint": f"tcp://*:{port}"} for rank, port in enumerate(ports)}


def says(*texts: bytes) -> Callable[[web.Request], Awaitable[web.Response]]:
    """A route that answers with each of ``texts`` in turn, and with the last one from then on."""
    left = list(texts)

    async def respond(request: web.Request) -> web.Response:
        return web.Response(body=left.pop(0) if len(left) > 1 else left[0])

    return respond


async def fails(request: web.Request) -> web.Response:
    return web.Response(status=503)
