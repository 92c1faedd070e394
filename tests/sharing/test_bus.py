"""Replicas on one real server hear each other's loads.

Covers of ``gateway/sharing/bus.py`` what needs no gateway. What breaks between them: ``test_bus_failures.py``.
"""

from __future__ import annotations

import asyncio
import random

import msgspec

from gateway.core.clock import SystemClock
from gateway.fleet.load.others import NOTHING, Row
from gateway.sharing.messages import MOST_BYTES, VERSION, Charged
from gateway.valkey import link
from tests.sharing.bus_replicas import CHANNEL, Replica, eventually, replicas
from tests.support.valkey import needs_valkey

pytestmark = needs_valkey


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


async def test_what_is_no_message_of_ours_is_dropped_and_counted(server):
    async with replicas(server, "a", "b") as (a, b):
        a.table.change("x", Row(requests=3))
        await eventually(lambda: b.table.requests("x") == 3)
        for message in (
            b"\xff garbage",
            msgspec.msgpack.encode(["loads", VERSION + 1, "c", 1, 1, False, []]),
            bytes(MOST_BYTES + 1),
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
