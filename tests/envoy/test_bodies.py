"""Bodies of any size, and many at once."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

import pytest

from gateway.commands.envoy.wanted import Mode
from tests.envoy.lab import CHAT, Front, Lab
from tests.support.chat import chat

pytestmark = pytest.mark.asyncio(loop_scope="session")

MB = 1 << 20


@pytest.mark.parametrize("mode", [Mode.ENDS, Mode.BUFFERED])
async def test_twenty_megabytes(mode, service: Lab) -> None:
    front = await service.envoy(mode)
    body = json.dumps(chat(group=10, filler="x" * 20 * MB)).encode()
    answer = await front.post(body)
    assert answer.status_code == 200, answer.text[:500]
    [got] = [one for engine in service.engines for one in engine.received if len(one.body) > 20 * MB]
    assert got.body == body
    for engine in service.engines:
        engine.received.clear()
    await service.nothing_is_booked()


@pytest.mark.parametrize("mode", [Mode.ENDS, Mode.BUFFERED])
async def test_more_than_the_limit_is_refused(mode, service: Lab) -> None:
    front = await service.envoy(mode)
    assert await status_of_much(front, 33 * MB) == 413
    await service.nothing_is_booked()


async def status_of_much(front: Front, size: int) -> int:
    """The status of the answer to a body of so many bytes, read while it is sent: the connection is closed then."""
    host, _, port = front.url.removeprefix("http://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))

    async def send() -> None:
        with contextlib.suppress(ConnectionError):
            writer.write(f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: {size}\r\n\r\n".encode())
            for _ in range(size // MB):
                writer.write(bytes(MB))
                await writer.drain()

    async with asyncio.TaskGroup() as group:
        sending = group.create_task(send())
        line = await reader.readline()
        sending.cancel()
    writer.close()
    return int(line.split()[1])


@pytest.mark.parametrize("mode", Mode)
async def test_a_body_that_comes_in_pieces(mode, service: Lab) -> None:
    front = await service.envoy(mode)
    body = json.dumps(chat(group=11)).encode()

    async def pieces() -> AsyncIterator[bytes]:
        for at in range(0, len(body), 300):
            yield body[at : at + 300]
            await asyncio.sleep(0)

    answer = await front.client.post(front.url + CHAT, content=pieces(), headers={"content-type": "application/json"})
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("mode", [Mode.ENDS, Mode.FULL])
async def test_two_hundred_at_once(mode, service: Lab) -> None:
    front = await service.envoy(mode)
    before = service.served()
    posts = [front.post(chat(group=number % 20, question=number, stream=bool(number % 2))) for number in range(200)]
    answers = await asyncio.gather(*posts)
    assert {answer.status_code for answer in answers} == {200}
    assert all(answer.text.endswith("data: [DONE]\n\n") for answer in answers[1::2])
    grown = [now - then for now, then in zip(service.served(), before, strict=True)]
    assert sum(grown) == 200
    assert min(grown) > 0, "both engines work"
    await service.nothing_is_booked()
