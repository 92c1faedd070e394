"""What the admin routes of a gateway, of a worker, and of a parent of workers have in common."""

from __future__ import annotations

import orjson
from aiohttp import web

DRAIN = "/endpoints/{name:.+}/drain"
WAKE = "/endpoints/{name:.+}/wake"
"""The name of a rank's endpoint has a slash in it."""

ENDPOINT = "/endpoints/{name:.+}"

LIMIT = 20
"""The default number of decisions in an answer."""


def refuse_pages(http: web.Request) -> None:
    """Raises HTTPForbidden."""
    if "Origin" in http.headers:
        raise web.HTTPForbidden(text="Not from a web page.\n")


def answer(content: object, status: int = 200) -> web.Response:
    """``content`` as JSON."""
    return web.Response(status=status, body=orjson.dumps(content) + b"\n", content_type="application/json")


def refused(status: int, message: str, param: str | None = None) -> web.Response:
    return answer({"error": {"message": message, "param": param}}, status)
