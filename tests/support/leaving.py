"""Clients that leave before their answer is complete, and engines that hold it back."""

from __future__ import annotations

import asyncio
import contextlib

import orjson

from tests.support.gateway import Running
from tests.support.wire import Connection


class Client:
    """A connection that sends one request, and leaves when it is told to."""

    def __init__(self, gateway: Running, body: dict[str, object], *, key: str = "") -> None:
        self._port = int(gateway.url.rpartition(":")[2])
        self._body = orjson.dumps(body)
        self._key = b"Authorization: Bearer %s\r\n" % key.encode() if key else b""

    async def __aenter__(self) -> Client:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self._port)
        self.writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: gateway\r\nContent-Type: application/json\r\n"
            b"%sContent-Length: %d\r\n\r\n%s" % (self._key, len(self._body), self._body)
        )
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()

    def leave(self, how: str) -> None:
        self.writer.transport.abort() if how == "reset" else self.writer.close()


class Held:
    """An engine that holds its answers: ``asked`` requests have come, ``gone`` of them were closed by the gateway."""

    def __init__(self, *said: bytes) -> None:
        self.said = said
        self.asked = 0
        self.gone = 0

    async def __call__(self, connection: Connection, head: bytes, body: bytes) -> None:
        self.asked += 1
        await connection.say_apart(self.said)
        await connection.gone()
        self.gone += 1
        connection.writer.close()
