"""Replicas on one real server: they hear each other's loads, and whatever happens to it or to them, are whole again.

Covers of ``gateway/sharing/bus.py`` what needs no gateway.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator

import msgspec
import pytest

from gateway.core.clock import SystemClock
from gateway.core.observer import Observer
from gateway.fleet.load.others import NOTHING, Row
from gateway.sharing.bus import Bus
from gateway.sharing.messages import VERSION, Charged
from gateway.sharing.settings import SharingSettings
from gateway.tenants.settings import ValkeySettings
from gateway.valkey import link
from tests.sharing.plain_table import PlainTable
from tests.support.valkey import ValkeyServer, needs_valkey, valkey
from tests.support.wait import eventually as within_seconds

pytestmark = needs_valkey

CHANNEL = "kvgate:tests:loads"


async def eventually(condition, what: str = "what is waited for") -> None:
    await within_seconds(condition, what, within=30.0)


class Counting(Observer):
    def __init__(self) -> None:
        self.dropped = Counter()

    def bus_dropped(self, reason: str) -> None:
        self.dropped[reason] += 1


class Replica:
    def __init__(self, server: ValkeyServer | Cable, name: str, clock: SystemClock | None = None) -> None:
        self.table = PlainTable()
        self.observer = Counting()
        self.bus = Bus(
            SharingSettings(server.settings.url, "tests"),
            self.table,
            range(256, 320),
            replica=name,
            place=f"{name}:8000",
            clock=clock or SystemClock(),
            observer=self.observer,
            chance=random.Random(name),
        )

    @property
    def fresh(self) -> int:
        return self.bus.states()["fresh"]


@pytest.fixture
async def server(tmp_path):
    async with valkey(tmp_path) as running:
        yield running


@contextlib.asynccontextmanager
async def replicas(server: ValkeyServer, *names: str) -> AsyncIterator[list[Replica]]:
    made = [Replica(server, name) for name in names]
    for one in made:
        one.bus.start()
    try:
        await eventually(lambda: all(one.fresh == len(names) - 1 for one in made), "all hear each other")
        yield made
    finally:
        for one in made:
            await one.bus.close()


async def test_they_hear_each_others_loads(server):
    async with replicas(server, "a", "b", "c") as (a, b, c):
        a.table.change("x", Row(requests=3, kv_tokens=30))
        b.table.change("x", Row(requests=1))
        await eventually(lambda: c.table.requests("x") == 4)
        await eventually(lambda: a.table.requests("x") == 1)
        a.table.change("x", NOTHING)
        await eventually(lambda: c.table.requests("x") == 1)
        assert not c.observer.dropped
        assert [one.place for one in c.bus.seen()] == ["a:8000", "b:8000"]


class Charging:
    """Queues that charge what they are told to."""

    def __init__(self) -> None:
        self.charged: list[Charged] = []
        self.heard: list[Charged] = []

    def take(self) -> tuple[Charged, ...]:
        taken, self.charged = tuple(self.charged), []
        return taken

    def hear(self, charged) -> None:
        self.heard += charged


async def test_they_hear_what_each_others_queues_charge_once(server, monkeypatch):
    monkeypatch.setattr("gateway.sharing.bus.WHOLE", 0.05)
    async with replicas(server, "a", "b", "c") as them:
        for one in them:
            one.bus.charges = Charging()
        a, b, c = (one.bus.charges for one in them)
        first, second = Charged("m", 0, "red", 2.5), Charged("m", -1, "blue", -1.0)
        a.charged.append(first)
        await eventually(lambda: b.heard == c.heard == [first])
        a.charged.append(second)
        await eventually(lambda: b.heard == c.heard == [first, second])
        assert a.heard == []


async def test_who_comes_later_hears_all_rows_at_once(server, monkeypatch):
    monkeypatch.setattr("gateway.sharing.bus.WHOLE", 1e9)
    async with replicas(server, "a", "b") as (a, _):
        a.table.change("x", Row(requests=3))
        late = Replica(server, "late")
        late.bus.start()
        await eventually(lambda: late.table.requests("x") == 3)
        await late.bus.close()


async def test_one_who_ends_takes_its_rows_along_at_once(server, monkeypatch):
    monkeypatch.setattr("gateway.sharing.peers.GONE", 1e9)
    async with replicas(server, "a") as (a,):
        other = Replica(server, "b")
        other.table.change("x", Row(requests=3))
        other.bus.start()
        await eventually(lambda: a.table.requests("x") == 3)
        await other.bus.close()
        await eventually(lambda: a.table.requests("x") == 0)
        assert a.bus.states() == {"fresh": 0, "stale": 0}


async def test_who_dies_fades_and_is_forgotten(server, monkeypatch):
    monkeypatch.setattr("gateway.sharing.peers.GONE", 1.0)
    async with replicas(server, "a") as (a,):
        other = Replica(server, "b")
        other.table.change("x", Row(requests=100))
        other.bus.start()
        await eventually(lambda: a.table.requests("x") == 100)
        await other.bus._tasks.close()  # as by kill -9: not another word
        await eventually(lambda: 0 < a.table.requests("x") < 100, "it fades")
        await eventually(lambda: not a.bus.seen(), "it is forgotten")
        assert a.table.requests("x") == 0
        await other.bus.link.close()


async def test_another_process_of_the_host_takes_over_without_counting_twice(server):
    async with replicas(server, "a") as (a,):
        lead, heir = Replica(server, "b"), Replica(server, "b")
        lead.table.change("x", Row(requests=3))
        heir.table.change("x", Row(requests=2))
        lead.bus.start()
        await eventually(lambda: a.table.requests("x") == 3)
        heir.bus.start()
        await eventually(lambda: a.table.requests("x") == 2)
        await eventually(lambda: a.observer.dropped["old"] > 0, "the one before is heard no more")
        await lead.bus.close(ends=False)
        assert a.table.requests("x") == 2
        assert heir.table.requests("x") == 0
        await heir.bus.close()


class SetBack(SystemClock):
    """As after a clock was set right: by an hour."""

    def wall(self) -> float:
        return super().wall() - 3600.0


async def test_a_clock_that_steps_back_while_another_takes_over_silences_nobody(server):
    async with replicas(server, "a") as (a,):
        lead = Replica(server, "b")
        lead.table.change("x", Row(requests=3))
        lead.bus.start()
        await eventually(lambda: a.table.requests("x") == 3)
        await lead.bus.close(ends=False)
        heir = Replica(server, "b", SetBack())
        heir.table.change("x", Row(requests=2))
        heir.bus.start()
        await eventually(lambda: a.table.requests("x") == 2)
        assert not a.observer.dropped
        await heir.bus.close()


async def test_a_defect_does_not_end_it(server, caplog):
    async with replicas(server, "a", "b") as (a, b):
        changed = a.table.changed

        def fails(cursor):
            a.table.changed = changed
            raise ValueError("a defect")

        a.table.changed = fails
        a.bus._table = a.table
        await eventually(lambda: "a defect" in caplog.text)
        a.table.change("x", Row(requests=3))
        await eventually(lambda: b.table.requests("x") == 3)


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


async def test_what_is_no_message_of_ours_is_dropped_and_counted(server):
    async with replicas(server, "a", "b") as (a, b):
        a.table.change("x", Row(requests=3))
        await eventually(lambda: b.table.requests("x") == 3)
        for message in (
            b"\xff garbage",
            msgspec.msgpack.encode(["loads", VERSION + 1, "c", 1, 1, False, []]),
            bytes(1 << 20),
            msgspec.msgpack.encode(["loads", VERSION, "a", 1, 1, True, [["x", 9]]]),
        ):
            await server.call("PUBLISH", CHANNEL, message)
        await eventually(lambda: b.observer.dropped.total() >= 4)
        assert b.observer.dropped == {"garbage": 1, "version": 1, "huge": 1, "old": 1}
        assert b.table.requests("x") == 3


def is_whole(message: bytes) -> bool:
    """Whether it is a picture of all loads, as one goes out each second."""
    return bool(msgspec.msgpack.decode(message)[5])


async def test_who_is_alone_tells_no_changes(server):
    said: list[bytes] = []
    async with replicas(server, "a") as (a,):
        hearing = link.Link(server.settings.url, {CHANNEL: said.append}, SystemClock(), random.Random(1))
        hearing.start()
        await eventually(lambda: hearing.up)
        for number in range(50):
            a.table.change("x", Row(requests=number))
            await asyncio.sleep(0.002)
        a.table.change("x", NOTHING)
        await eventually(lambda: len(said) >= 2)
        assert all(is_whole(message) for message in said), "who is alone tells no changes"
        async with replicas(server, "b"):
            pass
        await hearing.close()


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
