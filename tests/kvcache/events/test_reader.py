from __future__ import annotations

import asyncio
import io
import logging

import pytest

from gateway.core.prompt import Prompt
from gateway.framework.match import Source
from gateway.kvcache.events.decode import SLICE
from gateway.kvcache.events.reader import RETRY, TRIES
from gateway.observability.logs import configure
from gateway.observability.request_log import RequestLog
from gateway.observability.settings import LogSettings
from tests.kvcache.conftest import (
    CLEARED,
    Follower,
    ScriptedPublisher,
    Tally,
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


async def test_an_engine_that_has_said_nothing_is_believed(engine, follower):
    await live(follower, engine)
    keys = follower.index.keys(Prompt(ids(1), 17, True))
    follower.index.placed(keys, endpoint(0))
    assert follower.index.match(keys, 17, [endpoint(0)])[0].source is Source.PREDICTED


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("said", [0, 3])
async def test_what_was_sent_there_while_we_connected_is_not_forgotten(engine, follower, exact, said):
    """Events have told nothing yet that could be wrong; of a prompt whose tokens are not known they never will."""
    for number in range(said):
        await engine.publish(stored([10 + number], ids(number)))
    stream = follower.follow(engine.address, engine.replay)
    for _ in range(2):
        keys = follower.index.keys(Prompt(ids(77), 17, exact))
        follower.index.placed(keys, endpoint(0))
        await stream.synced.wait()
        source = Source.PREDICTED if exact else Source.ESTIMATED
        assert follower.index.match(keys, 17, [endpoint(0)])[0][-2:] == (16, source)
        stream.restart()
        assert follower.index.match(keys, 17, [endpoint(0)])[0].tokens == 0


async def test_a_lost_message_is_asked_for_again(engine, follower):
    await live(follower, engine)
    engine.lose = 2
    await engine.publish(stored([11], ids(1)))
    await engine.publish(stored([12], ids(2), parent=11))
    await engine.publish(stored([13], ids(3), parent=12))
    await held(follower, 0, 1, 2, 3)
    # It is told when the answer has come to its end, behind the last message.
    await eventually(lambda: follower.tally.gaps == {"replayed": 1}, "the gap is told")
    assert engine.asked == [0, 0]
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
                keys = follower.index.keys(Prompt(ids(number), 17, True))
                match = follower.index.match(keys, 17, [endpoint(0)])[0]
                seen.add((match.tokens, match.source))
            await asyncio.sleep(0)

    follower.tasks.start(watch(), name="watch")
    follower.index.placed(follower.index.keys(Prompt(ids(700), 17, True)), endpoint(0))
    await live(follower, engine)
    await held(follower, 0, 1999)
    assert seen <= {(0, Source.NONE), (16, Source.ESTIMATED), (16, Source.EVENTS)}
    assert tokens_held(follower.index, 0, ids(700)) == 0


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
    keys = follower.index.keys(Prompt(ids(1), 17, True))
    assert not follower.index.claim_reannounce(0, keys)


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
        # A busy machine may end a question before it has gone out.
        assert 0 < asked <= TRIES, "a gap is no reason to ask what does not answer"

        def is_held() -> bool:
            follower.clock.now += RETRY  # a slow machine may answer too late, and is asked again later
            return tokens_held(follower.index, 0, ids(1)) == 16

        await eventually(is_held, "its history is read")
        assert len(engine.asked) > asked
        await eventually(lambda: follower.tally.states[-1] == "live", "all is known")
    finally:
        await follower.close()


class Busy:
    """``count``: messages that were sent."""

    def __init__(self, engine: ScriptedPublisher) -> None:
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
    # Both are told when the answer has come to its end, behind the last message.
    await eventually(lambda: follower.tally.states[-1] == "partial", "its state is told")
    assert follower.tally.gaps == {"lost": 1}


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
    # The state is told when the answer has come to its end, behind the last message.
    await eventually(lambda: len(follower.tally.states) >= 4, "its state is told")
    assert follower.tally.states == ["connecting", "live", "connecting", "live"]


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
    follower = Follower(replay_timeout=1.0)  # in which the second one is answered, however busy the machine is
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


async def test_numbers_that_jump_are_a_line_of_log_and_not_one_each(engine, clock, caplog):
    """Each message ahead of the last one is a gap, each behind it another process: both cost a question."""
    caplog.set_level(logging.INFO)
    text = io.BytesIO()
    logs = configure(LogSettings(), stream=text, clock=clock)
    request_log = RequestLog(logs, clock)

    class Both(Tally):
        def kv_gap(self, endpoint: str, result: str) -> None:
            super().kv_gap(endpoint, result)
            request_log.kv_gap(endpoint, result)

        def kv_stream(self, endpoint: str, state: str) -> None:
            super().kv_stream(endpoint, state)
            request_log.kv_stream(endpoint, state)

    follower = Follower()
    follower.tally = Both()
    try:
        await live(follower, engine)
        for number in range(40):
            jumps = 1000 + number if number % 2 else number
            await engine.send_frames(b"kv", jumps.to_bytes(8, "big"), payload(stored([number], ids(number))))
        await eventually(lambda: sum(follower.tally.gaps.values()) >= 20, "the gaps are told")
    finally:
        await follower.close()
        logs.close()
    written = text.getvalue()
    assert written.count(b"gap in the KV event stream") == 1
    assert written.count(b"\n") <= 12
    assert caplog.text.count("its history, from") <= 1


async def test_a_history_without_end_is_given_up_and_what_is_said_is_followed(engine, follower, monkeypatch):
    monkeypatch.setattr("gateway.kvcache.events.replay.MAX_MESSAGES", 300)
    engine.endless = payload(stored([11], ids(1)))
    await live(follower, engine)
    assert engine.asked == [0], "to ask again would bring no end either"
    assert follower.tally.states[-1] == "partial"
    engine.next = follower.streams[0].last + 1
    await engine.publish(stored([12], ids(2)))
    await held(follower, 0, 2)


@pytest.mark.parametrize("count", [SLICE - 1, SLICE, 3 * SLICE + 5])
async def test_a_long_removal_lets_others_run_between_its_slices(engine, follower, count):
    await live(follower, engine)
    numbers = list(range(1, count + 1))
    await engine.publish(stored(numbers, ids(*numbers)))
    await held(follower, 0, *numbers)
    sizes = [follower.index.blocks]

    async def watch() -> None:
        while True:
            sizes.append(follower.index.blocks)
            await asyncio.sleep(0)

    follower.tasks.start(watch(), name="watch")
    await engine.publish(removed(*numbers))
    await held(follower, 0, *numbers, tokens=0)
    await eventually(lambda: follower.index.blocks == 0, "all are gone")
    assert len(set(sizes)) - 1 >= count // SLICE
