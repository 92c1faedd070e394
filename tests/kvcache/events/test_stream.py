from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter

import pytest
import uvloop

from gateway.core.prompt import Prompt
from gateway.framework.match import Source
from gateway.kvcache.events.decode import SLICE
from tests.kvcache.conftest import (
    CLEARED,
    Follower,
    ScriptedPublisher,
    endpoint,
    held,
    ids,
    live,
    payload,
    removed,
    stored,
    tokens_held,
)
from tests.support.wait import eventually


async def test_history_comes_first_and_then_what_is_said(engine, follower):
    await engine.publish(stored([11, 12], ids(1, 2)))
    await engine.publish(removed(12))
    await live(follower, engine)
    assert tokens_held(follower.index, 0, ids(1, 2)) == 16
    await engine.publish(stored([12, 13], ids(2, 3), parent=11))
    await held(follower, 0, 1, 2, 3)
    await engine.publish(CLEARED)
    await held(follower, 0, 1, 2, 3, tokens=0)
    assert follower.tally.states == ["connecting", "live"]
    assert engine.asked == [0]


def test_it_runs_on_uvloop():
    async def follow():
        engine, follower = ScriptedPublisher(), Follower()
        await engine.start()
        try:
            await engine.publish(stored([11], ids(1)))
            await live(follower, engine)
            await engine.publish(stored([12], ids(2), parent=11))
            await held(follower, 0, 1, 2)
        finally:
            await follower.close()
            await engine.stop()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(follow())


async def test_a_reset_with_tiers_below_lets_others_run(engine, follower):
    await live(follower, engine)
    names = range(10**6, 10**6 + 3000)
    await engine.publish(stored(names, ids(*range(3000))))
    await engine.publish(stored(names[:5], [], block_size=0, medium="CPU"))
    await held(follower, 0, *range(3000))
    turns = 0

    async def watch() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    await engine.publish(CLEARED, stored([77], ids(77)))
    follower.tasks.start(watch(), name="watch")
    await held(follower, 0, 77)
    assert turns > 3000 // SLICE
    match = follower.index.match(follower.index.keys(Prompt(ids(*range(9)), 145, True)), 145, [endpoint(0)])[0]
    assert (match.gpu, match.cpu) == (0, 80)


async def test_resets_again_and_again_leave_nothing_behind(engine, follower):
    """What each leaves to be cleared is cleared before the next: an engine's memory is not ours to fill."""
    await live(follower, engine)
    blocks = range(300)
    for turn in range(20):
        await engine.publish(CLEARED, stored([1000 * turn + number for number in blocks], ids(turn, *blocks[1:])))
    await held(follower, 0, 19, *blocks[1:])
    assert follower.index.blocks == 300


async def test_an_engine_that_sleeps_is_cleared_after_all_that_it_has_said(engine, follower):
    """A reset takes many turns of the loop; what is said meanwhile must not fall between two of them."""
    await live(follower, engine)
    blocks = range(2000)
    await engine.publish(stored([10 + number for number in blocks], ids(*blocks)))
    await engine.publish(stored([10, 11], [], block_size=0, medium="CPU"))
    await held(follower, 0, *blocks)
    for number in blocks[100:200]:
        engine.send_later(removed(10 + number), stored([5000 + number], ids(number), parent=9 + number))
    for sequence in range(2, engine.next):
        await engine.send_frames(b"kv", sequence.to_bytes(8, "big"), engine.kept[sequence])
    follower.streams[0].fell_asleep()
    await eventually(lambda: follower.tally.events["cleared"] == 1, "it is cleared")
    await eventually(lambda: tokens_held(follower.index, 0, ids(*blocks)) == 32, "only what is below is left")
    await engine.publish(removed(10, 11, medium="CPU"), stored([99], ids(9)))
    await held(follower, 0, 9)
    assert follower.streams[0].last == engine.next - 1
    assert follower.index.blocks == 1
    follower.streams[0].fell_asleep()
    await eventually(lambda: follower.index.blocks == 0, "it falls asleep again, and has nothing to say")


async def test_what_an_engine_has_said_and_nobody_has_looked_at_is_cleared_too(engine, follower, monkeypatch):
    monkeypatch.setattr("gateway.kvcache.events.reader.TICK", 1.0)
    await live(follower, engine)
    follower.streams[0].fell_asleep()
    for _ in range(10):
        await asyncio.sleep(0)
    assert follower.tally.events["cleared"] == 0
    await engine.publish(stored([11], ids(1)))
    await held(follower, 0, 1)
    await eventually(lambda: follower.tally.events["cleared"] == 1, "it is cleared")
    assert tokens_held(follower.index, 0, ids(1)) == 0


async def test_garbage_is_counted_and_survived(engine, follower):
    await live(follower, engine)
    await engine.send_frames(b"kv")
    await engine.send_frames(b"kv", b"short", b"")
    await engine.send(b"\xc1")
    await engine.send(payload())
    await engine.publish(stored([11], ids(1)))
    await held(follower, 0, 1)
    assert follower.tally.events["malformed-batch"] == 3


async def test_only_its_topic_is_heard(engine, follower):
    await live(follower, engine, topic="kv")
    await engine.send_frames(b"other", (5).to_bytes(8, "big"), payload(stored([99], ids(99))))
    await engine.publish(stored([11], ids(1)))
    await held(follower, 0, 1)
    assert tokens_held(follower.index, 0, ids(99)) == 0


@pytest.mark.parametrize("with_replay", [True, False])
async def test_events_of_another_rank_are_left_out_and_what_is_held_is_not_known(engine, follower, with_replay, caplog):
    """Of a rank with an address of its own, say, that was given the first one's: all have a publisher for each rank."""
    await engine.publish(stored([11], ids(1)))  # as rank 0
    if not with_replay:
        engine.replay = None
    await live(follower, engine, rank=1)
    await engine.publish(stored([12], ids(2)), CLEARED)
    await eventually(lambda: follower.tally.events["other-rank"] == (2 if with_replay else 1), "both were heard")
    assert tokens_held(follower.index, 0, ids(1)) == tokens_held(follower.index, 0, ids(2)) == 0
    await eventually(lambda: follower.tally.states[-1] == "partial", "it may hold anything")
    assert caplog.text.count("come from rank 0 of its engine, not from 1") == 1
    keys = follower.index.keys(Prompt(ids(3), 17, True))
    follower.index.placed(keys, endpoint(0))
    assert follower.index.match(keys, 17, [endpoint(0)])[0].source is Source.ESTIMATED


@pytest.mark.parametrize("rank", [None, 0])
async def test_events_of_its_own_rank_count_and_so_do_those_of_a_rank_that_is_not_known(engine, follower, rank):
    await live(follower, engine, rank=rank)
    await engine.publish(stored([11], ids(1)))
    await held(follower, 0, 1)


async def test_a_long_message_lets_others_run(engine, follower):
    await live(follower, engine)
    sizes = [0]

    async def watch() -> None:
        while True:
            sizes.append(follower.index.blocks)
            await asyncio.sleep(0)

    follower.tasks.start(watch(), name="watch")
    prompt = range(3000)
    await engine.publish(stored([10**6 + number for number in prompt], ids(*prompt)))
    await held(follower, 0, *prompt)
    assert max(later - earlier for earlier, later in itertools.pairwise(sizes)) <= SLICE


async def test_another_block_size_begins_all_streams_anew(follower):
    engines = [ScriptedPublisher(), ScriptedPublisher()]
    try:
        for engine in engines:
            await engine.start()
        await engines[0].publish(stored([11], ids(1, 2)))
        await live(follower, engines[0])
        assert follower.index.unit == 32
        # More than one message, and more than one event in each: none may be applied twice, or out of its order.
        for number in range(20):
            events = [stored([100 + number, 200 + number], ids(100 + number, 200 + number)), stored([50], ids(5))]
            await engines[1].publish(*events)
        await live(follower, engines[1])
        await held(follower, 0, 1, 2)
        await held(follower, 1, 119, 219)
        await held(follower, 1, 5)
        assert follower.index.unit == 16
        for _ in range(20):
            await engines[1].publish(removed(50))
        await held(follower, 1, 5, tokens=0)
        await engines[0].publish(removed(11))
        await held(follower, 0, 1, 2, tokens=0)
    finally:
        await follower.close()
        for engine in engines:
            await engine.stop()


async def test_a_restart_reads_everything_again(engine, follower):
    await engine.publish(stored([11], ids(1)))
    await live(follower, engine)
    follower.streams[0].restart()
    assert tokens_held(follower.index, 0, ids(1)) == 0
    assert not follower.streams[0].synced.is_set()
    await held(follower, 0, 1)
    await engine.publish(removed(11))
    await held(follower, 0, 1, tokens=0)


@pytest.mark.parametrize("address", ["nonsense", "tcp://", "http://127.0.0.1:1"])
async def test_an_address_that_is_none_turns_events_off(follower, address):
    stream = follower.follow(address, None)
    async with asyncio.timeout(30):
        await stream.synced.wait()
    assert follower.tally.states == ["connecting", "off"]
    keys = follower.index.keys(Prompt(ids(1), 17, True))
    follower.index.placed(keys, endpoint(0))
    assert follower.index.match(keys, 17, [endpoint(0)])[0].source is Source.ESTIMATED


@pytest.mark.parametrize("with_replay", [True, False])
async def test_what_fails_in_us_is_read_anew(engine, follower, monkeypatch, caplog, with_replay):
    """As after a restart, and estimated until then: one defect must not end what is known of an engine."""
    stream = follower.follow(engine.address, engine.replay if with_replay else None)
    await engine.subscribed()
    await stream.synced.wait()
    await engine.publish(stored([11], ids(1)))
    await held(follower, 0, 1)
    take, failing = follower.index.apply, [True, True]
    monkeypatch.setattr(follower.index, "apply", lambda *all: 1 / 0 if failing and failing.pop() else take(*all))
    await engine.publish(stored([12], ids(2)))
    await eventually(lambda: follower.tally.events["failed"] == 1, "it fails")
    await eventually(lambda: tokens_held(follower.index, 0, ids(1)) == 0, "what was applied in part is forgotten")
    keys = follower.index.keys(Prompt(ids(7), 17, True))
    follower.index.placed(keys, endpoint(0))
    assert follower.index.match(keys, 17, [endpoint(0)])[0].source is Source.ESTIMATED
    assert stream.synced.is_set(), "nobody waits for it"

    async def says_more() -> None:
        # Without a replay it is this that fails once more.
        while tokens_held(follower.index, 0, ids(3)) == 0:
            await engine.publish(stored([13], ids(3)))
            await asyncio.sleep(0.02)

    async with asyncio.timeout(30):
        await says_more()
    assert follower.tally.events["failed"] == 2
    assert tokens_held(follower.index, 0, ids(1)) == (16 if with_replay else 0)
    assert follower.tally.states[-1] == ("live" if with_replay else "partial")
    assert "ZeroDivisionError" in caplog.text
    assert "Traceback" in caplog.text


async def test_a_replay_address_that_is_none_costs_the_past_only(engine, follower):
    stream = follower.follow(engine.address, "nonsense")
    await engine.subscribed()
    await stream.synced.wait()
    await engine.publish(stored([11], ids(1)))
    await held(follower, 0, 1)
    assert follower.tally.states[-1] == "partial"


async def test_an_engine_that_is_not_there_is_waited_for(follower):
    engine = ScriptedPublisher()
    await engine.start()
    await engine.stop()
    stream = follower.follow(engine.address, engine.replay)
    assert not stream.synced.is_set()
    await engine.start()
    try:
        await engine.publish(stored([11], ids(1)))
        await held(follower, 0, 1)
    finally:
        await engine.stop()


async def test_a_closed_stream_leaves_nothing_behind(engine):
    follower = Follower()
    unstarted = follower.follow(engine.address, engine.replay)
    await unstarted.close()
    await live(follower, engine)
    stream = follower.streams[-1]
    await stream.close()
    await stream.close()
    stream.restart()
    assert stream.synced.is_set()
    await eventually(lambda: len(follower.tasks) == 0, "all tasks have ended")
    await follower.close()


@pytest.fixture
async def impatient():
    one = Follower(replay_timeout=0.5)
    yield one
    await one.close()


@pytest.mark.parametrize("seed", range(5))
async def test_a_bad_connection_heals(engine, impatient, seed):
    """Losses, duplicates, messages out of order and restarts at random: in the end the index is the engine's cache."""
    chance, follower = random.Random(seed), impatient
    await live(follower, engine)
    held_there: Counter[int] = Counter()
    process = 0
    for _ in range(80):
        what = chance.random()
        if what < 0.04:
            process += 1
            held_there.clear()
            await engine.restart()
            continue
        engine.lose = int(chance.random() < 0.2)
        block = chance.randrange(6)
        if what < 0.08:
            held_there.clear()
            await engine.publish(CLEARED)
        elif what < 0.4 and held_there[block]:
            held_there[block] -= 1
            await engine.publish(removed(1000 * process + block))
        else:
            held_there[block] += 1
            await engine.publish(stored([1000 * process + block], ids(block)))
        again = chance.random()
        if again < 0.3 and engine.next > 3:
            # The last message once more, or an older one that was delayed.
            sequence = engine.next - (1 if again < 0.2 else chance.randrange(2, 4))
            await engine.send_frames(b"kv", sequence.to_bytes(8, "big"), engine.kept[sequence])
    engine.lose = 0

    async def heals() -> None:
        # Only what comes next brings the last loss to light; block 9 is nobody else's.
        while any(tokens_held(follower.index, 0, ids(block)) != 16 * (held_there[block] > 0) for block in range(6)):
            await engine.publish(stored([9], ids(9)))
            await asyncio.sleep(0.02)

    async with asyncio.timeout(30):
        await heals()
