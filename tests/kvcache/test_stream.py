from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from typing import Any

import pytest
import uvloop

from gateway.framework import Source
from gateway.kvcache.applying import SLICE
from gateway.kvcache.following import RETRY, TRIES
from tests.kvcache.conftest import (
    CLEARED,
    FakeEngine,
    Follower,
    endpoint,
    ids,
    payload,
    removed,
    stored,
    tokens_held,
)
from tests.support.wait import eventually


async def live(follower: Follower, engine: FakeEngine, **others: Any) -> None:
    """Follow ``engine`` until its history is read and live messages are heard."""
    stream = follower.follow(engine.address, engine.replay, **others)
    async with asyncio.timeout(10):
        await engine.subscribed()
        await stream.synced.wait()


async def held(follower: Follower, slot: int, *numbers: int, tokens: int | None = None) -> None:
    """Wait until the whole prompt of ``numbers`` is held, or ``tokens`` of it."""
    wanted = 16 * len(numbers) if tokens is None else tokens
    await eventually(lambda: tokens_held(follower.index, slot, ids(*numbers)) == wanted, f"{numbers}: {wanted} tokens")


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
        engine, follower = FakeEngine(), Follower()
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


async def test_an_engine_that_has_said_nothing_is_believed(engine, follower):
    await live(follower, engine)
    keys = follower.index.keys(ids(1), 17, True, None, None)
    follower.index.placed(keys, endpoint(0))
    assert follower.index.match(keys, 17, [endpoint(0)])[0].source is Source.PREDICTED


async def test_a_lost_message_is_asked_for_again(engine, follower):
    await live(follower, engine)
    engine.lose = 2
    await engine.publish(stored([11], ids(1)))
    await engine.publish(stored([12], ids(2), parent=11))
    await engine.publish(stored([13], ids(3), parent=12))
    await held(follower, 0, 1, 2, 3)
    assert (follower.tally.gaps, engine.asked) == ({"replayed": 1}, [0, 0])
    assert follower.tally.events["orphan"] == 0
    assert follower.tally.states == ["connecting", "live"]


async def test_what_an_engine_held_is_not_matched_before_its_history_is_read(engine, follower):
    """Of a full replay buffer most says what has gone since; a match of half of it would be of the past."""
    for number in range(2000):
        await engine.publish(stored([10 + number], ids(number)), *([removed(9 + number)] if number else []))
    seen: set[tuple[int, Source]] = set()

    async def watch() -> None:
        while True:
            for number in (0, 700, 1999):
                keys = follower.index.keys(ids(number), 17, True, None, None)
                match = follower.index.match(keys, 17, [endpoint(0)])[0]
                seen.add((match.tokens, match.source))
            await asyncio.sleep(0)

    follower.tasks.start(watch(), name="watch")
    follower.index.placed(follower.index.keys(ids(700), 17, True, None, None), endpoint(0))
    await live(follower, engine)
    await held(follower, 0, 1999)
    assert seen <= {(0, Source.NONE), (16, Source.ESTIMATED), (16, Source.EVENTS)}
    assert tokens_held(follower.index, 0, ids(700)) == 0


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
    match = follower.index.match(follower.index.keys(ids(*range(9)), 145, True, None, None), 145, [endpoint(0)])[0]
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


async def test_an_engine_without_replay_that_was_away_and_missed_nothing_is_live(engine, follower):
    stream = follower.follow(engine.address, None)
    await engine.subscribed()
    await stream.synced.wait()
    await engine.publish(stored([11], ids(1)))
    await held(follower, 0, 1)
    await engine.stop()
    await eventually(lambda: follower.tally.states[-1] == "connecting", "it is away")
    await engine.start()
    await engine.subscribed()
    await engine.publish(stored([12], ids(2), parent=11))
    await held(follower, 0, 1, 2)
    assert follower.tally.states == ["connecting", "partial", "live", "connecting", "live"]
    await engine.stop()
    engine.send_later(stored([13], ids(3), parent=12))
    await engine.start()
    await engine.subscribed()
    await engine.publish(stored([14], ids(4)))
    await held(follower, 0, 4)
    assert follower.tally.states[-2:] == ["connecting", "partial"]
    assert follower.tally.gaps == {"lost": 1}


@pytest.mark.parametrize("below", [False, True])
@pytest.mark.parametrize("with_replay", [False, True])
async def test_an_engine_that_empties_its_cache_holds_nothing_unknown(engine, follower, with_replay, below):
    """Unless something is on tiers below, of which its reset says nothing."""
    engine.send_later(stored([21], ids(7)))
    engine.send_later(stored([11], ids(1)))
    del engine.kept[0]
    stream = follower.follow(engine.address, engine.replay if with_replay else None)
    await engine.subscribed()
    await stream.synced.wait()
    await engine.publish(stored([12], ids(2)))
    await held(follower, 0, 2)
    assert follower.tally.states[-1] == "partial"
    if below:
        await engine.publish(stored([12], [], block_size=0, medium="CPU"))
    await engine.publish(CLEARED, stored([13], ids(3)))
    await held(follower, 0, 3)
    await eventually(lambda: follower.tally.states[-1] == ("partial" if below else "live"), "its state")
    keys = follower.index.keys(ids(1), 17, True, None, None)
    assert not follower.index.asks(0, keys)


async def test_a_history_that_could_not_be_read_is_asked_for_beside_a_busy_stream(engine):
    """It is its time that counts, not that nothing else comes."""
    follower = Follower(replay_timeout=0.05)
    try:
        await engine.publish(stored([11], ids(1)))
        engine.deaf = True
        await live(follower, engine)
        busy = Busy(engine)
        follower.tasks.start(busy.run(), name="busy")
        await eventually(lambda: busy.count > 5, "it is busy")
        engine.deaf = False
        asked = len(engine.asked)
        assert asked == TRIES, "a gap is no reason to ask what does not answer"
        follower.clock.now += RETRY
        await held(follower, 0, 1)
        assert len(engine.asked) > asked
        await eventually(lambda: follower.tally.states[-1] == "live", "all is known")
    finally:
        await follower.close()


class Busy:
    """``count``: messages that were sent."""

    def __init__(self, engine: FakeEngine) -> None:
        self.count = 0
        self._engine = engine

    async def run(self) -> None:
        while True:
            self._engine.lose = int(self.count % 3 == 1)
            await self._engine.publish(stored([100 + self.count], ids(100 + self.count)))
            self.count += 1
            await asyncio.sleep(0)


async def test_history_that_is_lost_makes_it_partial(engine, follower):
    await engine.publish(stored([11], ids(1)))
    await engine.publish(stored([21], ids(7)))
    del engine.kept[0]
    await live(follower, engine)
    assert follower.tally.states[-1] == "partial"
    assert [tokens_held(follower.index, 0, ids(number)) for number in (1, 7)] == [0, 16]


async def test_a_gap_that_cannot_be_filled_forgets_what_may_be_gone(engine, follower):
    await engine.publish(stored([11], ids(1)))
    await live(follower, engine)
    engine.lose = 1
    await engine.publish(removed(11))
    await engine.publish(stored([12], ids(2)))
    engine.kept.clear()
    await engine.publish(stored([13], ids(3)))
    await held(follower, 0, 3)
    assert tokens_held(follower.index, 0, ids(1)) == 0
    assert follower.tally.gaps == {"lost": 1}
    assert follower.tally.states[-1] == "partial"


async def test_a_message_that_comes_twice_counts_once(engine, follower):
    await live(follower, engine)
    message = payload(stored([11], ids(1)))
    await engine.send(message)
    await engine.send_frames(b"kv", (0).to_bytes(8, "big"), message)
    await engine.publish(removed(11))
    await engine.publish(stored([19], ids(9)))
    await held(follower, 0, 9)
    assert tokens_held(follower.index, 0, ids(1)) == 0
    assert engine.asked == [0]


async def test_numbers_that_go_back_are_another_process(engine, follower):
    await live(follower, engine)
    for number in range(5):
        await engine.publish(stored([10 + number], ids(number)))
    await held(follower, 0, 4)
    engine.kept.clear()
    engine.next = 0
    engine.lose = 1
    await engine.publish(stored([31], ids(31)))
    await engine.publish(stored([32], ids(32), parent=31))
    await held(follower, 0, 31, 32)
    assert tokens_held(follower.index, 0, ids(4)) == 0
    assert follower.index.blocks == 2


async def test_a_restart_is_noticed_though_the_engine_says_nothing(engine, follower):
    await engine.publish(stored([11], ids(1)))
    await live(follower, engine)
    await engine.restart()
    await held(follower, 0, 1, tokens=0)
    await engine.publish(stored([12], ids(2)))
    await held(follower, 0, 2)


async def test_a_restart_that_passes_the_old_number_is_noticed(engine, follower):
    await engine.publish(stored([11], ids(1)))
    await live(follower, engine)
    await engine.stop()
    engine.kept.clear()
    engine.next = 0
    engine.kept = {number: payload(stored([20 + number], ids(20 + number))) for number in range(3)}
    engine.next = 3
    await engine.start()
    await held(follower, 0, 22)
    assert [tokens_held(follower.index, 0, ids(number)) for number in (1, 20, 21)] == [0, 16, 16]


async def test_a_restart_while_a_gap_is_asked_for_is_noticed(engine, follower):
    """The question reaches another process, which has as many messages: they are not what is missing."""
    await engine.publish(stored([11], ids(1)))
    await engine.publish(stored([12], ids(2)))
    await live(follower, engine)
    engine.lose = 1
    await engine.publish(stored([13], ids(3)))
    # The gap shows with the next message; by then another process answers.
    message = payload(stored([14], ids(4)))
    engine.kept = {number: payload(stored([21 + number], ids(21 + number))) for number in range(6)}
    await engine.send_frames(b"kv", (3).to_bytes(8, "big"), message)
    engine.next = 6
    await held(follower, 0, 26)
    assert [tokens_held(follower.index, 0, ids(number)) for number in (1, 2, 3, 4, 21)] == [0, 0, 0, 0, 16]
    await engine.publish(stored([27], ids(27)))
    await held(follower, 0, 27)


async def test_a_connection_that_comes_back_costs_nothing(engine, follower):
    await engine.publish(stored([11], ids(1)))
    await live(follower, engine)
    await engine.stop()
    engine.send_later(stored([12], ids(2), parent=11))
    await engine.start()
    await held(follower, 0, 1, 2)
    assert follower.tally.events["stored"] == 2
    assert follower.tally.states == ["connecting", "live", "connecting", "live"]


async def test_garbage_is_counted_and_survived(engine, follower):
    await live(follower, engine)
    await engine.send_frames(b"kv")
    await engine.send_frames(b"kv", b"short", b"")
    await engine.send(b"\xc1")
    await engine.send(payload())
    await engine.publish(stored([11], ids(1)))
    await held(follower, 0, 1)
    assert follower.tally.events["malformed-batch"] == 3


async def test_a_number_out_of_the_blue_is_survived(engine, follower):
    await live(follower, engine)
    await engine.publish(stored([11], ids(1)))
    await engine.send_frames(b"kv", (2**63).to_bytes(8, "big"), payload(stored([99], ids(99))))
    await engine.publish(stored([12], ids(2), parent=11))
    await held(follower, 0, 1, 2)
    assert tokens_held(follower.index, 0, ids(99)) == 0


async def test_a_hole_in_a_replay_is_asked_for_again(engine, follower):
    for number in range(6):
        await engine.publish(stored([11 + number], ids(number), parent=10 + number if number else None))
    engine.holes = {2, 4}
    await live(follower, engine)
    assert tokens_held(follower.index, 0, ids(*range(6))) == 96
    assert engine.asked[:2] == [0, 1]
    assert follower.tally.states[-1] == "live"


async def test_a_replay_without_end_is_asked_for_again(engine):
    follower = Follower(replay_timeout=0.1)
    try:
        await engine.publish(stored([11], ids(1)))
        engine.without_end = 1
        await live(follower, engine)
        assert tokens_held(follower.index, 0, ids(1)) == 16
        assert engine.asked == [0, 0]  # from the last that is known, to see that it still is
        assert follower.tally.states[-1] == "live"
    finally:
        await follower.close()


async def test_a_replay_that_never_answers_is_done_without(engine):
    follower = Follower(replay_timeout=0.05)
    try:
        await engine.publish(stored([11], ids(1)))
        engine.deaf = True
        await live(follower, engine)
        assert follower.tally.states[-1] == "partial"
        await engine.publish(stored([12], ids(2)))
        await held(follower, 0, 2)
        assert tokens_held(follower.index, 0, ids(1)) == 0
    finally:
        await follower.close()


async def test_without_a_replay_address_what_is_heard_counts(engine, follower):
    await engine.publish(stored([11], ids(1)))
    stream = follower.follow(engine.address, None)
    await engine.subscribed()
    await stream.synced.wait()
    await engine.publish(stored([12], ids(2)))
    await held(follower, 0, 2)
    engine.lose = 1
    await engine.publish(stored([13], ids(3)))
    await engine.publish(stored([14], ids(4)))
    await held(follower, 0, 4)
    assert follower.tally.gaps == {"lost": 1}
    assert follower.tally.states[-1] == "partial"
    assert tokens_held(follower.index, 0, ids(2)) == 16
    engine.next = 0
    await engine.publish(stored([15], ids(5)))
    await held(follower, 0, 5)
    assert [tokens_held(follower.index, 0, ids(number)) for number in (2, 4)] == [0, 0]
    assert follower.tally.states[-1] == "live"
    assert engine.asked == []


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
    keys = follower.index.keys(ids(3), 17, True, None, None)
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
    engines = [FakeEngine(), FakeEngine()]
    follower.index.on_new_unit = lambda: [stream.restart() for stream in follower.streams]
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
    async with asyncio.timeout(10):
        await stream.synced.wait()
    assert follower.tally.states == ["connecting", "off"]
    keys = follower.index.keys(ids(1), 17, True, None, None)
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
    take, failing = follower.index.take, [True, True]
    monkeypatch.setattr(follower.index, "take", lambda *all: 1 / 0 if failing and failing.pop() else take(*all))
    await engine.publish(stored([12], ids(2)))
    await eventually(lambda: follower.tally.events["failed"] == 1, "it fails")
    await eventually(lambda: tokens_held(follower.index, 0, ids(1)) == 0, "what was applied in part is forgotten")
    keys = follower.index.keys(ids(7), 17, True, None, None)
    follower.index.placed(keys, endpoint(0))
    assert follower.index.match(keys, 17, [endpoint(0)])[0].source is Source.ESTIMATED
    assert stream.synced.is_set(), "nobody waits for it"

    async def says_more() -> None:
        # Without a replay it is this that fails once more.
        while tokens_held(follower.index, 0, ids(3)) == 0:
            await engine.publish(stored([13], ids(3)))
            await asyncio.sleep(0.02)

    async with asyncio.timeout(10):
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
    engine = FakeEngine()
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

    async with asyncio.timeout(20):
        await heals()
