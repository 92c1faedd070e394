"""With a real server: what is heard and asked, and what happens while it is away."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.core.clock import SystemClock
from gateway.valkey import link as module
from gateway.valkey.client import Away
from gateway.valkey.link import Link
from tests.support.valkey import ValkeyServer, needs_valkey, valkey
from tests.support.wait import eventually

pytestmark = needs_valkey

PATIENT = 10.0
"""Seconds for an answer that has to come, however busy the machine is. A link gets less only while its server hangs."""


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


async def test_a_server_that_hangs_is_left_and_found_again(server, monkeypatch, caplog):
    async with linked(server) as link:
        server.pause()
        monkeypatch.setattr(module, "ANSWER", 0.3)
        with pytest.raises(Away):
            await link.ask("GET", "a")
        await eventually(lambda: not link.up, within=30.0)
        assert "no answer within 0.3 s" in caplog.text
        monkeypatch.setattr(module, "ANSWER", PATIENT)
        server.go_on()
        await eventually(lambda: link.up, within=30.0)
        assert await link.ask("GET", "a") is None


async def test_who_only_hears_notices_that_the_server_hangs(server, monkeypatch):
    monkeypatch.setattr(module, "LOOK", 0.05)
    monkeypatch.setattr(module, "ANSWER", PATIENT)
    async with linked(server, news=lambda data: None) as link:
        while (await server.call("INFO", "commandstats"))["cmdstat_role"]["calls"] < 3:  # noqa: ASYNC110 -- the server counts them
            await asyncio.sleep(0)
        assert link.outages == 0, "silence alone is no fault"
        server.pause()
        monkeypatch.setattr(module, "ANSWER", 0.3)
        await eventually(lambda: link.outages == 1, within=30.0)
        server.go_on()


async def test_who_asks_nothing_notices_that_the_server_is_gone(server, monkeypatch):
    monkeypatch.setattr(module, "LOOK", 0.05)
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


class Name:
    """Leads to a server, and from ``lead_to`` on to another; connections that are there stay where they are."""

    def __init__(self, server: ValkeyServer) -> None:
        self.lead_to(server)

    def lead_to(self, server: ValkeyServer) -> None:
        self._port = server.port

    async def __aenter__(self) -> Name:
        self._listening = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        self.url = f"redis://127.0.0.1:{self._listening.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_) -> None:
        self._listening.close()

    async def _carry(self, reader, writer) -> None:
        from_server, to_server = await asyncio.open_connection("127.0.0.1", self._port)
        await asyncio.gather(carry(reader, to_server), carry(from_server, writer))


async def carry(reader, writer) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
    writer.close()


@contextlib.asynccontextmanager
async def two_servers(folder: Path) -> AsyncIterator[tuple[ValkeyServer, ValkeyServer]]:
    for name in ("old", "new"):
        (folder / name).mkdir()
    async with valkey(folder / "old") as old, valkey(folder / "new") as new:
        yield old, new


@pytest.mark.parametrize("refused", [(), ("-role",)], ids=["asked by ROLE", "asked by INFO"])
async def test_a_failover_that_cuts_no_connection_is_noticed(tmp_path, monkeypatch, refused):
    monkeypatch.setattr(module, "LOOK", 0.05)
    heard: list[bytes] = []
    async with two_servers(tmp_path) as (old, new), Name(old) as name:
        if refused:
            await old.call("ACL", "SETUSER", "default", *refused)
        link = Link(name.url, {"news": heard.append}, SystemClock(), random.Random(1))
        link.start()
        await eventually(lambda: link.up, within=30.0)
        assert await link.ask("PUBLISH", "news", b"at the old one") == 1
        name.lead_to(new)
        await old.call("REPLICAOF", "127.0.0.1", str(new.port))
        await eventually(lambda: link.outages == 1 and link.up, within=30.0)
        await new.call("PUBLISH", "news", "at the new one")
        await eventually(lambda: heard == [b"at the old one", b"at the new one"], within=30.0)
        await link.close()


async def test_a_replica_is_not_connected_to(tmp_path):
    async with two_servers(tmp_path) as (old, new):
        await old.call("REPLICAOF", "127.0.0.1", str(new.port))
        link = Link(old.settings.url, {}, SystemClock(), random.Random(1))
        link.start()
        await eventually(lambda: "replica" in link.problem, within=30.0)
        await old.call("REPLICAOF", "NO", "ONE")
        await eventually(lambda: link.up, within=30.0)
        assert link.outages == 0
        await link.close()


async def test_where_nobody_may_ask_who_leads_it_is_said(server, monkeypatch, caplog):
    monkeypatch.setattr(module, "LOOK", 0.05)
    await server.call("ACL", "SETUSER", "default", "-role")
    async with linked(server) as link:
        assert "cannot be known" not in caplog.text, "INFO says it"
        await server.call("ACL", "SETUSER", "default", "-info")
        await eventually(lambda: "whether Valkey leads cannot be known" in caplog.text, within=30.0)
        assert link.outages == 0


async def test_a_wrong_password_is_a_problem_and_no_end(tmp_path):
    async with valkey(tmp_path, "--requirepass", "a-password") as server:
        link = Link(server.settings.url.replace("a-password", "a-wrong-one"), {}, SystemClock(), random.Random(1))
        link.start()
        await eventually(lambda: "password" in link.problem, within=30.0)
        await link.close()


async def test_a_server_without_a_place_for_one_more_client_says_so(server):
    await server.call("CONFIG", "SET", "maxclients", "1")
    async with linked(server):
        late = Link(server.settings.url, {}, SystemClock(), random.Random(1))
        late.start()
        await eventually(lambda: "max number of clients reached" in late.problem, within=30.0)
        await late.close()
