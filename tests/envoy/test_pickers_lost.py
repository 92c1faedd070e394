"""Pickers that die, stop and come back, while clients are served."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.commands.envoy.wanted import Mode
from tests.envoy.lab import CHAT, Front, Lab, lab
from tests.envoy.versions import NEWEST, OLDEST
from tests.support.chat import chat
from tests.support.wait import eventually, until

LONG = {"stream": True, "max_tokens": 400, "ignore_eos": True}
"""A stream that is still under way when its picker dies, and ends soon after."""


class Streams:
    """Clients that each read a stream to its end. ``begun``: have had a part of it."""

    def __init__(self, front: Front) -> None:
        self.front = front
        self.begun = 0
        self.whole = 0
        self.events: list[int] = []  # with text, of those that are whole
        self.broken = 0
        self.refused = 0

    async def one(self, group: int) -> None:
        with contextlib.suppress(httpx.HTTPError):
            url = self.front.url + CHAT
            async with self.front.client.stream("POST", url, json=chat(group=group, **LONG)) as answer:
                if answer.status_code != 200:
                    self.refused += 1
                    return
                data = b""
                async for part in answer.aiter_raw():
                    self.begun += not data
                    data += part
                if data.endswith(b"data: [DONE]\n\n"):
                    self.whole += 1
                    self.events.append(data.count(b'"content":'))
                    return
        self.broken += 1

    @contextlib.asynccontextmanager
    async def running(self, count: int) -> AsyncIterator[None]:
        """All of them have begun; all have ended when the context is left."""
        async with asyncio.TaskGroup() as group:
            for number in range(count):
                group.create_task(self.one(number))
            await eventually(lambda: self.begun == count, "all streams have begun", within=60)
            yield


@contextlib.asynccontextmanager
async def slow(folder: Path, **settings: Any) -> AsyncIterator[Lab]:
    """Engines whose streams last long enough to be met in their middle."""
    async with lab(folder, simulator={"step_seconds": 0.005}, **settings) as made:
        yield made


async def test_a_killed_picker_breaks_the_streams_that_it_hears_and_no_others(folder) -> None:
    async with slow(folder) as made:
        found = {mode: Streams(await made.envoy(mode)) for mode in Mode}
        async with contextlib.AsyncExitStack() as stack:
            for streams in found.values():
                await stack.enter_async_context(streams.running(2))
            await made.kill_picker()
        for mode, streams in found.items():
            heard = mode in (Mode.ENDS, Mode.FULL)
            assert (streams.whole, streams.broken) == ((0, 2) if heard else (2, 0)), mode

        # It comes back, and is asked again.
        await made.start_picker()
        for mode in Mode:
            front = await made.envoy(mode)
            await front.picker_is(True)
            answer = await front.post(chat(group=99))
            assert answer.status_code == 200
            id = answer.headers["x-request-id"]
            assert id in [one["request_id"] for one in await made.decisions()], mode
        await made.nothing_is_booked()


@pytest.mark.parametrize("version", [NEWEST, OLDEST])
async def test_without_a_picker_requests_go_on_or_do_not(version, folder) -> None:
    async with lab(folder) as made:
        fronts = {mode: await made.envoy(mode, version=version) for mode in Mode}
        closed = await made.envoy(version=version, fail_open=False)
        await made.kill_picker()
        for front in (*fronts.values(), closed):
            await front.picker_is(False)
        for mode, front in fronts.items():
            await until(lambda front=front: answered(front), "its threads know it, too")
            before = made.served()
            answers = [await front.post(chat(question=number)) for number in range(4)]
            assert [answer.status_code for answer in answers] == [200] * 4, mode
            assert [now - then for now, then in zip(made.served(), before, strict=True)] == [2, 2], "in turn"
            assert (await front.post({}, "/sleep")).status_code == 404, "and yet nobody sends an engine to sleep"
        before = made.served()
        assert (await closed.post(chat())).status_code >= 500
        assert made.served() == before

        await made.start_picker()
        await closed.picker_is(True)
        await until(lambda: answered(closed), "its threads know it, too")


async def test_an_envoy_that_finds_no_picker_serves_all_the_same(folder) -> None:
    async with lab(folder, picker=False) as made:
        front = await made.envoy(expect=None)
        await until(lambda: answered(front), "requests pass")


async def answered(front: Front) -> bool:
    return (await front.post(chat())).status_code == 200


@pytest.mark.parametrize(("mode", "hears"), [(Mode.ENDS, "auto"), (Mode.FULL, "auto"), (Mode.FULL, "ends")])
async def test_a_picker_that_is_stopped_breaks_no_stream_and_loses_no_request(mode, hears, folder) -> None:
    """SIGTERM under load: the streams that run lose nothing, and who comes meanwhile is served by the next one."""
    async with slow(folder, epp={"hears": hears, "drain": 30.0}) as made:
        front = await made.envoy(mode)
        streams, comers, over = Streams(front), Streams(front), asyncio.Event()

        async def come() -> None:
            number = 100
            while not over.is_set():
                number += 1
                await comers.one(number)

        async with asyncio.TaskGroup() as group:
            for _ in range(4):
                group.create_task(come())
            async with streams.running(20):
                assert await made.stop_picker() == 0
            await front.picker_is(False)
            await made.start_picker()
            await front.picker_is(True)
            over.set()
        assert (streams.whole, streams.broken) == (20, 0)
        assert len({*streams.events, *comers.events}) == 1, "none lacks a part"
        assert comers.whole > 0
        assert (comers.broken, comers.refused) == (0, 0)
        await made.nothing_is_booked()
