"""One request over a kept connection: which connection it takes, and what of an answer is waited for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator

import pytest

from gateway.core.clock import SystemClock
from gateway.fleet.address import Address, TlsContexts
from gateway.fleet.engine_client import EngineClient, ProbeFailed
from gateway.fleet.settings import EndpointSettings
from gateway.http1.pool import Pool
from tests.support.wait import eventually
from tests.support.wire import STREAM_HEAD, Connection, ScriptedServer, answer

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio", "uvloop"])

Asking = Callable[..., Awaitable[bytes]]


@pytest.fixture
def connects() -> list[float]:
    return []


@pytest.fixture
def asking(connects: list[float]) -> Iterator[Asking]:
    pool = Pool(SystemClock())

    async def asked(url: str, body: bytes = b"", timeout: float = 10.0) -> bytes:
        address = Address.of(EndpointSettings(url), TlsContexts())
        client = EngineClient(pool, address, None, timeout, connects.append)
        return await (client.post("/", body, 1000, timeout, ()) if body else client.get("/", 1000))

    yield asked
    pool.close()


async def test_a_kept_connection_that_died_idle_is_replaced(asking, connects):
    async def script(connection: Connection) -> None:
        await connection.request()
        await connection.say(answer(b"%d" % connection.number))
        if connection.number == 0:
            await connection.request()  # and closes, since it was idle for too long

    async with ScriptedServer(script) as server:
        assert await asking(server.url) == b"0"
        assert await asking(server.url) == b"1"
        assert len(connects) == len(server.connections) == 2


async def test_a_kept_connection_that_breaks_in_its_answer_is_not_replaced(asking):
    async def script(connection: Connection) -> None:
        await connection.request()
        await connection.say(answer(b"whole"))
        await connection.request()
        await connection.say(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nshort")

    async with ScriptedServer(script) as server:
        assert await asking(server.url) == b"whole"
        with pytest.raises(ProbeFailed, match="reset"):
            await asking(server.url)
        assert len(server.connections) == 1


async def test_what_may_change_something_is_sent_once(asking):
    """On a connection of its own: that a kept one has died cannot be told from an engine that died of the request."""

    async def script(connection: Connection) -> None:
        while True:
            _, body = await connection.request()
            if body and connection.number == 2:
                return
            await connection.say(answer(b"%d" % connection.number))

    async with ScriptedServer(script) as server:
        assert await asking(server.url) == b"0"
        assert await asking(server.url, b"{}") == b"1"
        with pytest.raises(ProbeFailed, match="reset"):
            await asking(server.url, b"{}")
        assert len(server.connections) == 3


async def test_an_error_is_known_by_its_head(asking):
    async def script(connection: Connection) -> None:
        await connection.request()
        await connection.say(STREAM_HEAD.replace(b"200 OK", b"500 Oh"))
        await connection.gone()

    async with ScriptedServer(script) as server:
        with pytest.raises(ProbeFailed, match="status-500"):
            await asking(server.url)
        await eventually(lambda: server.left == 1, "nobody waits for its body")


async def test_an_error_with_its_body_leaves_the_connection_for_another_question(asking, connects):
    async def script(connection: Connection) -> None:
        while True:
            await connection.request()
            await connection.say(answer(b"no such route", status="404 Not Found"))

    async with ScriptedServer(script) as server:
        for _ in range(3):
            with pytest.raises(ProbeFailed, match="status-404"):
                await asking(server.url)
        assert len(connects) == 1


async def test_a_question_that_timed_out_leaves_no_connection(asking):
    async def script(connection: Connection) -> None:
        await connection.request()
        await connection.gone()

    async with ScriptedServer(script) as server:
        with pytest.raises(ProbeFailed, match="timeout"):
            await asking(server.url, timeout=0.05)
        await eventually(lambda: server.left == 1, "the engine sees that the connection is closed")
