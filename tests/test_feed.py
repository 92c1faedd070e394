from __future__ import annotations

from typing import cast

import pytest

from gateway.feed import SWEEP_SLICE, CacheFeed
from gateway.fleet.fleet import Fleet
from gateway.fleet.kv_source import KvSource
from gateway.framework import ManualClock
from gateway.kvcache.index import CacheIndex
from gateway.kvcache.pace import Pace
from gateway.kvcache.settings import CacheSettings
from tests.kvcache.conftest import CLEARED, Tally, endpoint, ids, stored, tokens_held
from tests.kvcache.conftest import engine as engine
from tests.support.wait import eventually


class Slots:
    """What the feed asks of a fleet."""

    def __init__(self) -> None:
        self.released: list[int] = []

    def listen(self, listener: object) -> None: ...

    def release_slot(self, slot: int) -> None:
        self.released.append(slot)


class Fed:
    """A feed, its one index, and one endpoint."""

    def __init__(self) -> None:
        settings = CacheSettings()
        self.tally = Tally()
        self.index = CacheIndex(settings, "m", ManualClock(), self.tally)
        self.feed = CacheFeed({"m": (self.index, settings)}, ManualClock(), self.tally, Pace())
        self.slots = Slots()
        self.feed.connect(cast(Fleet, self.slots))
        self.endpoint = endpoint(0)
        self.feed.endpoint_added(self.endpoint)

    def held(self, *numbers: int) -> int:
        return tokens_held(self.index, 0, ids(*numbers))


@pytest.fixture
async def fed():
    one = Fed()
    yield one
    await one.feed.close()


async def test_where_events_come_from_they_are_followed(fed, engine):
    await engine.publish(stored([11], ids(1)))
    fed.feed.kv_source(fed.endpoint, KvSource(engine.address, engine.replay))
    assert await fed.feed.synced(10)
    assert fed.held(1) == 16
    fed.feed.kv_source(fed.endpoint, None)
    assert fed.tally.states[-1] == "off"
    assert fed.held(1) == 0


async def test_an_engine_that_cannot_be_reached_is_not_synced(fed):
    fed.feed.kv_source(fed.endpoint, KvSource("tcp://127.0.0.1:1", None))
    assert not await fed.feed.synced(0.05)


async def test_a_restart_reads_anew(fed, engine):
    await engine.publish(stored([11], ids(1)))
    fed.feed.kv_source(fed.endpoint, KvSource(engine.address, engine.replay))
    assert await fed.feed.synced(10)
    engine.kept.clear()
    engine.next = 0
    fed.feed.engine_restarted(fed.endpoint)
    assert fed.held(1) == 0
    assert await fed.feed.synced(10)
    assert fed.held(1) == 0


async def test_an_estimated_engine_that_restarts_holds_nothing(fed):
    keys = fed.index.keys(ids(1), 17, True, None, None)
    fed.index.placed(keys, fed.endpoint)
    assert fed.index.match(keys, 17, [fed.endpoint])[0].tokens == 16
    fed.feed.engine_restarted(fed.endpoint)
    assert fed.index.match(keys, 17, [fed.endpoint])[0].tokens == 0


@pytest.mark.parametrize("below", [False, True])
async def test_an_engine_that_sleeps_has_nothing_on_its_gpu(fed, engine, below):
    """Long before it says so: its own event comes with its first step after waking up."""
    blocks = range(3 * SWEEP_SLICE)
    await engine.publish(stored([10 + number for number in blocks], ids(*blocks)))
    if below:
        await engine.publish(stored([10, 11], [], block_size=0, medium="CPU"))
    fed.feed.kv_source(fed.endpoint, KvSource(engine.address, engine.replay))
    assert await fed.feed.synced(10)
    assert fed.held(*blocks) == 16 * len(blocks)
    fed.feed.engine_asleep(fed.endpoint)
    await eventually(lambda: fed.held(*blocks) == (32 if below else 0), "only what is below is left")
    await engine.publish(CLEARED, stored([99], ids(9)))
    await eventually(lambda: fed.held(9) == 16, "it goes on")
    assert fed.held(*blocks) == (32 if below else 0)


async def test_an_estimated_engine_that_sleeps_holds_nothing(fed):
    keys = fed.index.keys(ids(1), 17, True, None, None)
    fed.index.placed(keys, fed.endpoint)
    fed.feed.engine_asleep(fed.endpoint)
    assert fed.index.match(keys, 17, [fed.endpoint])[0].tokens == 0


async def test_a_slot_is_released_when_nothing_is_left_of_it(fed, engine):
    fed.feed.kv_source(fed.endpoint, KvSource(engine.address, engine.replay))
    await engine.publish(stored([10 + number for number in range(2000)], ids(*range(2000))))
    assert await fed.feed.synced(10)
    fed.feed.endpoint_dropped(fed.endpoint)
    assert fed.held(0) == 0
    await eventually(lambda: fed.slots.released == [0], "the slot is released")
    assert fed.index.blocks == 0
