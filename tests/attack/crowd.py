"""Many clients at once, from raw sockets, and how each of their requests ended."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import orjson

from tests.support.chat import CHAT, STREAMED
from tests.support.wire import RawClient, Reply, raw_client, raw_post


@dataclass
class Crowd:
    """What became of requests. ``ended``: by ``ok``, ``broken`` (an answer that had begun and ended with an error
    event), ``wrong`` (one that is not whole and does not say so), ``cut`` (without an end), or the HTTP status.
    ``running``: numbers of those that have not ended."""

    ended: Counter[str]
    running: set[int] = field(default_factory=set)

    def __str__(self) -> str:
        return str(dict(self.ended))

    @property
    def asked(self) -> int:
        return self.ended.total()


async def crowd(
    url: str,
    *,
    requests: int,
    clients: int,
    body: Callable[[int], dict[str, Any]] = lambda number: STREAMED if number % 2 else CHAT,
    until: Callable[[], bool] = lambda: False,
    into: Crowd | None = None,
) -> Crowd:
    """Ask ``requests`` times, by so many ``clients`` at once, each of which keeps its connection. ``body``: of a
    request by its number. ``until``: true once no request shall begin any more. ``into``: counts along."""
    result = Crowd(Counter()) if into is None else into
    numbers = iter(range(requests))

    async def one() -> None:
        while not until():
            try:
                async with raw_client(url) as client:
                    for number in numbers:
                        asked = body(number)
                        result.running.add(number)
                        try:
                            result.ended[await _ask(client, asked)] += 1
                        finally:
                            result.running.discard(number)
                        if until():
                            return
                    return
            except (asyncio.IncompleteReadError, ConnectionError):
                result.ended["cut"] += 1

    await asyncio.gather(*(one() for _ in range(clients)))
    return result


async def _ask(client: RawClient, asked: dict[str, Any]) -> str:
    await client.say(raw_post(orjson.dumps(asked)))
    return ended(await client.reply(), streamed=bool(asked.get("stream")))


def ended(reply: Reply, *, streamed: bool) -> str:
    """How a request has ended, in a word of ``Crowd``."""
    if reply.status != 200:
        return str(reply.status)
    if not streamed:
        return "ok" if orjson.loads(reply.body).get("choices") else "wrong"
    if reply.body.endswith(b"data: [DONE]\n\n"):
        return "broken" if b'"error"' in reply.body else "ok"
    return "broken" if b'"error"' in reply.body else "wrong"
