"""Whatever happens to the server, or to the network before it, replicas serve on, and are whole again."""

from __future__ import annotations

import asyncio

import pytest

from gateway.fleet.load.others import Row
from gateway.tenants.settings import ValkeySettings
from gateway.valkey import link
from tests.sharing.bus_replicas import Replica, eventually, replicas
from tests.support.valkey import ValkeyServer, needs_valkey, valkey

pytestmark = needs_valkey


class Cable:
    """Carries bytes between replicas and the server, until it is cut: then nobody hears of it, as when a network
    breaks."""

    def __init__(self, server: ValkeyServer) -> None:
        self._server = server
        self.whole = asyncio.Event()
        self.whole.set()
        self._tasks: set[asyncio.Task] = set()

    async def __aenter__(self) -> Cable:
        self._listening = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        port = self._listening.sockets[0].getsockname()[1]
        self.settings = ValkeySettings(f"redis://127.0.0.1:{port}", "tests")
        return self

    async def __aexit__(self, *_) -> None:
        self._listening.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _carry(self, reader, writer) -> None:
        self._tasks.add(asyncio.current_task())
        to_server = await asyncio.open_connection("127.0.0.1", self._server.port)
        ways = [self._way(reader, to_server[1]), self._way(to_server[0], writer)]
        try:
            async with asyncio.TaskGroup() as both:
                for way in ways:
                    both.create_task(way)
        finally:
            writer.close()
            to_server[1].close()

    async def _way(self, reader, writer) -> None:
        while data := await reader.read(65536):
            await self.whole.wait()
            writer.write(data)
        writer.close()


@pytest.mark.parametrize("happens", ["killed", "paused", "flushed"])
async def test_whatever_happens_to_the_server_all_is_whole_again(server, happens, monkeypatch):
    monkeypatch.setattr(link, "ANSWER", 0.5)
    monkeypatch.setattr("gateway.sharing.peers.GONE", 1.0)
    async with replicas(server, "a", "b") as (a, b):
        a.table.change("x", Row(requests=100))
        await eventually(lambda: b.table.requests("x") == 100)
        if happens == "flushed":
            await server.call("FLUSHALL")
        else:
            await (server.stop() if happens == "killed" else asyncio.sleep(0))
            if happens == "paused":
                server.pause()
            await eventually(lambda: b.table.requests("x") < 100, "what is old fades")
            a.table.change("x", Row(requests=7))
            await eventually(lambda: not a.bus.link.up)
            await eventually(lambda: not b.bus.seen(), "who is silent is forgotten")
            if happens == "killed":
                await server.start()
            else:
                server.go_on()
        a.table.change("x", Row(requests=50))
        await eventually(lambda: b.table.requests("x") == 50)
        b.table.change("y", Row(requests=1))
        await eventually(lambda: a.table.requests("y") == 1)


async def test_rows_fade_while_a_message_waits_for_the_server(server, monkeypatch):
    monkeypatch.setattr(link, "ANSWER", 1e9)  # for as long as it is not taken for away
    monkeypatch.setattr("gateway.sharing.peers.GONE", 1.0)
    async with replicas(server, "a", "b") as (a, b):
        a.table.change("x", Row(requests=100))
        b.table.change("x", Row(requests=1))  # so that it has something to say all the time
        await eventually(lambda: b.table.requests("x") == 100)
        server.pause()
        await eventually(lambda: 0 < b.table.requests("x") < 100, "what is old fades")
        await eventually(lambda: not b.bus.seen(), "who is silent is forgotten")
        assert b.bus.link.up
        server.go_on()


async def test_one_that_is_cut_off_serves_alone_and_is_whole_when_the_network_is(server, monkeypatch):
    monkeypatch.setattr(link, "ANSWER", 0.5)
    monkeypatch.setattr(link, "LOOK", 0.3)
    monkeypatch.setattr("gateway.sharing.peers.GONE", 1.0)
    async with Cable(server) as cable, replicas(server, "a", "b") as (a, b):
        c = Replica(cable, "c")
        c.bus.start()
        a.table.change("x", Row(requests=10))
        c.table.change("x", Row(requests=5))
        await eventually(lambda: (b.table.requests("x"), c.table.requests("x")) == (15, 10))
        cable.whole.clear()
        await eventually(lambda: not c.bus.link.up, "it is noticed")
        await eventually(lambda: not c.bus.seen() and len(b.bus.seen()) == 1)
        assert (b.table.requests("x"), c.table.requests("x")) == (10, 0)
        a.table.change("x", Row(requests=11))
        c.table.change("x", Row(requests=6))
        cable.whole.set()
        await eventually(lambda: (b.table.requests("x"), c.table.requests("x")) == (17, 11))
        await c.bus.close()


async def test_a_slow_server_is_no_lost_one(server):
    async with replicas(server, "a", "b") as (a, b):
        await server.call("CLIENT", "PAUSE", "600", "ALL")
        a.table.change("x", Row(requests=3))
        await eventually(lambda: b.table.requests("x") == 3)
        assert a.bus.link.outages == b.bus.link.outages == 0


async def test_a_full_server_still_carries_loads(tmp_path):
    async with valkey(tmp_path, "--maxmemory", "1", "--maxmemory-policy", "noeviction") as full:
        async with replicas(full, "a", "b") as (a, b):
            a.bus.link.tell("SET", "key", "value")
            a.table.change("x", Row(requests=3))
            await eventually(lambda: b.table.requests("x") == 3)
            assert a.bus.link.outages == 0
