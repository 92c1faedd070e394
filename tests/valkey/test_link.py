"""With a real server: what is heard and asked, and what happens while it is away."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator

import pytest

from gateway.core.clock import SystemClock
from gateway.valkey import link as module
from gateway.valkey.link import Away, Link
from tests.support.valkey import ValkeyServer, needs_valkey, valkey
from tests.support.wait import eventually

pytestmark = needs_valkey


@pytest.fixture
async def server(tmp_path):
    async with valkey(tmp_path) as running:
        yield running


@contextlib.asynccontextmanager
async def linked(server: ValkeyServer, *, wait: bool = True, **channels) -> AsyncIterator[Link]:
    link = Link(server.settings.url, channels, SystemClock(), random.Random(1))
    link.start()
    try:
        if wait:
            await eventually(lambda: link.up, within=30.0)
        yield link
    finally:
        await link.close()


async def test_what_one_tells_the_others_hear_in_order(server):
    heard: list[bytes] = []
    async with linked(server, news=heard.append), linked(server) as other:
        for number in range(300):
            assert other.tell("PUBLISH", "news", b"\xff%d" % number)
        await eventually(lambda: len(heard) == 300, within=30.0)
    assert heard == [b"\xff%d" % number for number in range(300)]


async def test_what_was_told_goes_out_before_the_end(server):
    heard: list[bytes] = []
    async with linked(server, news=heard.append):
        async with linked(server) as other:
            other.tell("PUBLISH", "news", b"goodbye")
        await eventually(lambda: heard == [b"goodbye"], within=30.0)


async def test_many_ask_at_once_over_one_connection(server):
    async with linked(server) as link:
        answers = await asyncio.gather(*(link.ask("INCR", "n") for _ in range(500)))
        assert answers == list(range(1, 501))
        assert int((await server.call("INFO", "clients"))["connected_clients"]) == 2  # the link's, and this one


async def test_a_refused_command_fails_alone(server):
    async with linked(server) as link:
        good, bad, other = await asyncio.gather(
            link.ask("SET", "a", "1"), link.ask("NONSENSE"), link.ask("GET", "a"), return_exceptions=True
        )
        assert (good, other) == (b"OK", b"1")
        assert isinstance(bad, Away)
        link.tell("NONSENSE")
        assert await link.ask("GET", "a") == b"1"
        assert link.outages == 0


async def test_who_leaves_while_waiting_disturbs_nobody(server):
    async with linked(server) as link:
        server.pause()
        leaving = [asyncio.create_task(link.ask("INCR", "n")) for _ in range(3)]
        await asyncio.sleep(0)
        leaving[1].cancel()
        server.go_on()
        assert await leaving[0] == 1
        assert await leaving[2] == 3


async def test_while_it_is_away_all_fails_at_once_and_then_it_is_back(server):
    heard: list[bytes] = []
    changes: list[bool] = []
    async with linked(server, news=heard.append) as link:
        link.watch(lambda: changes.append(link.up))
        await server.stop()
        await eventually(lambda: not link.up, within=30.0)
        with pytest.raises(Away):
            await link.ask("GET", "a")
        assert not link.tell("GET", "a")
        assert link.problem
        await server.start()
        await eventually(lambda: link.up, within=30.0)
        assert await link.ask("PUBLISH", "news", b"back") == 1
        await eventually(lambda: heard == [b"back"], within=30.0)
        assert changes == [False, True]


async def test_a_server_that_hangs_is_left_and_found_again(server, monkeypatch):
    monkeypatch.setattr(module, "ANSWER", 0.3)
    async with linked(server) as link:
        server.pause()
        with pytest.raises(Away):
            await link.ask("GET", "a")
        await eventually(lambda: not link.up, within=30.0)
        server.go_on()
        await eventually(lambda: link.up, within=30.0)
        assert await link.ask("GET", "a") is None


async def test_a_hearing_connection_that_is_dead_is_noticed(server, monkeypatch):
    monkeypatch.setattr(module, "SILENCE", 0.2)
    async with linked(server, news=lambda data: None) as link:
        while (await server.call("INFO", "commandstats"))["cmdstat_ping"]["calls"] < 3:  # noqa: ASYNC110 -- the server counts them
            await asyncio.sleep(0)
        assert link.outages == 0, "silence alone is no fault"
        server.pause()
        await eventually(lambda: link.outages == 1, within=30.0)
        server.go_on()


async def test_who_asks_nothing_notices_that_the_server_is_gone(server, monkeypatch):
    monkeypatch.setattr(module, "IDLE", 0.05)
    async with linked(server) as link:
        await server.stop()
        await eventually(lambda: not link.up, within=30.0)


async def test_what_waits_is_bounded(server, monkeypatch):
    monkeypatch.setattr(module, "MOST_WAITING", 10)
    async with linked(server) as link:
        server.pause()
        sent = [link.tell("SET", "a", str(number)) for number in range(100)]
        assert sum(sent) == 10
        with pytest.raises(Away, match="wait"):
            await link.ask("GET", "a")
        server.go_on()
        await eventually(lambda: link.tell("PING"), within=30.0)
        assert await link.ask("GET", "a") == b"9"


async def test_who_hears_may_fail(server):
    def fails(data: bytes) -> None:
        raise ValueError(data)

    async with linked(server, news=fails) as link:
        assert await link.ask("PUBLISH", "news", b"x") == 1
        assert await link.ask("PUBLISH", "news", b"x") == 1
        assert link.outages == 0


async def test_a_server_that_leads_no_more_is_left(server):
    async with linked(server) as link:
        await server.call("REPLICAOF", "127.0.0.1", "1")
        with pytest.raises(Away):
            await link.ask("SET", "a", "1")
        await eventually(lambda: link.outages == 1, within=30.0)


async def test_a_wrong_password_is_a_problem_and_no_end(tmp_path):
    async with valkey(tmp_path, "--requirepass", "a-password") as server:
        link = Link(server.settings.url.replace("a-password", "a-wrong-one"), {}, SystemClock(), random.Random(1))
        link.start()
        await eventually(lambda: "password" in link.problem, within=30.0)
        await link.close()
