from __future__ import annotations

import asyncio
from typing import cast

import pytest

from gateway.core.clock import ManualClock
from gateway.core.prompt import Prompt
from gateway.feed import SWEEP_SLICE, CacheFeed
from gateway.fleet.fleet import Fleet
from gateway.fleet.kv_source import KvSource
from gateway.kvcache.events.poller import Poller
from gateway.kvcache.index.cache_index import Applied
from gateway.kvcache.settings import CacheSettings
from tests.kvcache.conftest import (
    CLEARED,
    TICK,
    Index,
    ScriptedPublisher,
    Tally,
    endpoint,
    ids,
    removed,
    stored,
    tokens_held,
)
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
    """A feed, its one index, and one endpoint; ``follow`` adds others."""

    def __init__(self) -> None:
        settings = CacheSettings()
        self.tally = Tally()
        self.index = Index(settings, "m", ManualClock(), self.tally)
        self.feed = CacheFeed({"m": self.index}, ManualClock(), self.tally, Poller(TICK))
        self.slots = Slots()
        self.feed.connect(cast(Fleet, self.slots))
        self.endpoint = endpoint(0)
        self.feed.endpoint_added(self.endpoint)

    def held(self, *numbers: int, slot: int = 0) -> int:
        return tokens_held(self.index, slot, ids(*numbers))

    def follow(self, slot: int, engine: ScriptedPublisher) -> None:
        one = self.endpoint
        if slot:
            one = endpoint(slot)
            self.feed.endpoint_added(one)
        self.feed.kv_source(one, KvSource(engine.address, engine.replay))


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
    keys = fed.index.keys(Prompt(ids(1), 17, True))
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
    await engine.subscribed()
    await engine.publish(CLEARED, stored([99], ids(9)))
    await eventually(lambda: fed.held(9) == 16, "it goes on")
    assert fed.held(*blocks) == (32 if below else 0)


async def test_an_estimated_engine_that_sleeps_holds_nothing(fed):
    keys = fed.index.keys(Prompt(ids(1), 17, True))
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


@pytest.fixture
async def engines():
    fakes = [ScriptedPublisher() for _ in range(3)]
    for fake in fakes:
        await fake.start()
    yield fakes
    for fake in fakes:
        await fake.stop()


@pytest.mark.parametrize("amid", ["replay", "live events"])
async def test_another_block_size_begins_all_streams_of_the_model_anew(fed, engines, monkeypatch, amid):
    """Of three engines one sends the new size while much of another's events is yet to be applied."""
    busy, changes, idle = engines
    await changes.publish(stored([11, 12], ids(1, 2, 3, 4)))
    await idle.publish(stored([13], ids(5, 6)))
    fed.follow(1, changes)
    fed.follow(2, idle)
    assert await fed.feed.synced(10)
    for one in (changes, idle):
        await one.subscribed()
    assert fed.index.unit == 32
    take, taken, at_change = fed.index.apply, [0, 0, 0], []

    def counted(slot, events):
        applied = take(slot, events)
        taken[slot] += 1
        if applied is Applied.REKEYED:
            at_change.append((slot, taken[0]))
        return applied

    monkeypatch.setattr(fed.index, "apply", counted)
    prompt = range(160_000)  # longer than is applied in a turn of the loop
    tokens = ids(*prompt)
    blocks = [stored([10**6], ids(0, 1))]
    for start in range(2, len(prompt), 2000):
        some = range(start, min(start + 2000, len(prompt)), 2)
        names = [10**6 + number for number in some]
        blocks.append(stored(names, tokens[16 * some[0] : 16 * (some[-1] + 2)], parent=names[0] - 2))
    if amid == "replay":
        for one in blocks:
            await busy.publish(one)
        fed.follow(0, busy)
    else:
        fed.follow(0, busy)
        assert await fed.feed.synced(10)
        await busy.subscribed()
        await busy.publish(*blocks)
    async with asyncio.timeout(30):
        while not taken[0]:  # noqa: ASYNC110 -- each turn of the loop counts
            await asyncio.sleep(0)
    await changes.publish(stored([21, 22], ids(7, 8)), stored([23], ids(9)))
    every = len(prompt) + len((1, 2, 3, 4, 5, 6, 7, 8, 9))  # to match all of them again and again would take long
    await eventually(lambda: at_change and fed.index.blocks == every, "the long history is read anew", within=60)
    assert await fed.feed.synced(10)
    assert fed.held(*prompt) == len(tokens)
    ((slot, applied),) = at_change
    assert slot == 1
    assert applied < taken[0] / 2, "it was amid its events"
    assert fed.index.unit == 16
    assert [fed.held(1, 2, 3, 4, slot=1), fed.held(7, 8, slot=1), fed.held(9, slot=1)] == [64, 32, 16]
    assert fed.held(5, 6, slot=2) == 32
    assert set(fed.tally.gaps) == set()
    assert fed.tally.events["new-unit"] == 1
    # Nothing was applied twice: one removal is the end of each.
    if amid == "replay":
        await busy.subscribed()
    await busy.publish(removed(*[name for one in blocks for name in one.block_hashes]))
    await changes.publish(removed(11, 12, 21, 22, 23))
    await idle.publish(removed(13))
    await eventually(lambda: fed.index.blocks == 0, "all is gone", within=60)


async def test_a_block_size_that_is_told_at_first_begins_nothing_anew(fed, engines):
    """The index has no unit of any engine's before, and no stream has told of anything."""
    for slot, one in enumerate(engines):
        await one.publish(stored([11, 12], ids(1, 2, 3, 4)))
        fed.follow(slot, one)
    assert await fed.feed.synced(10)
    assert fed.index.unit == 32
    assert fed.tally.events == {"stored": 6}
    assert [one.asked for one in engines] == [[0], [0], [0]]
