from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest
import zmq

from gateway.framework import Source
from gateway.kvcache.events import MAX_MESSAGE
from gateway.kvcache.intake import STRANGERS, WAITING, WAITING_BYTES, Expected, Intake, Line, Voice
from gateway.kvcache.pace import Pace
from gateway.kvcache.sockets import Change
from gateway.kvcache.stream import EventStream
from tests.kvcache.conftest import (
    TICK,
    FakeEngine,
    Follower,
    Tally,
    endpoint,
    ids,
    payload,
    removed,
    stored,
    tokens_held,
)
from tests.support.ports import free_in_a_row
from tests.support.wait import eventually

TOPIC = "kv@e0@m"


class Connecting(FakeEngine):
    """An engine whose PUB socket connects to ``intake``."""

    def __init__(self, intake: Intake, topic: str = TOPIC, offset: int = 0) -> None:
        super().__init__()
        self.topic = topic.encode()
        self.address = intake.address_of(offset)
        self.binds = False


@pytest.fixture
async def intake(tally: Tally) -> AsyncIterator[Intake]:
    one, pace = Intake(f"tcp://127.0.0.1:{free_in_a_row(2)}", [], tally), Pace(TICK)
    one.start(pace)
    yield one
    await one.close()
    assert pace._timer is None, "nothing is left behind"


@pytest.fixture
async def engine(intake: Intake) -> AsyncIterator[FakeEngine]:
    fake = Connecting(intake)
    await fake.start()
    yield fake
    await fake.stop()


async def follow(
    follower: Follower, intake: Intake, replay: str | None, topic: str = TOPIC, offset: int = 0
) -> EventStream:
    """Listen for an engine: what it says from now on is heard."""
    voice = intake.port(offset).voices.setdefault(topic.encode(), Voice())
    before = len(voice.lines)
    stream = follower.follow_from(Expected(intake, topic, offset), replay)
    await eventually(lambda: len(voice.lines) > before, "its line is open")
    return stream


async def held(follower: Follower, slot: int, *numbers: int, tokens: int | None = None) -> None:
    wanted = 16 * len(numbers) if tokens is None else tokens
    await eventually(lambda: tokens_held(follower.index, slot, ids(*numbers)) == wanted, f"{numbers}: {wanted} tokens")


async def state(follower: Follower, wanted: str) -> None:
    await eventually(lambda: follower.tally.states[-1:] == [wanted], wanted)


async def test_history_comes_first_and_then_what_is_said(engine, intake, follower):
    engine.send_later(stored([11], ids(1)))
    await engine.subscribed()
    stream = await follow(follower, intake, engine.replay)
    async with asyncio.timeout(10):
        await stream.synced.wait()
    assert tokens_held(follower.index, 0, ids(1)) == 16
    assert follower.tally.states == ["connecting"], "nobody knows yet that it is connected"
    await engine.publish(stored([12], ids(2), parent=11))
    await held(follower, 0, 1, 2)
    await engine.publish(removed(12))
    await held(follower, 0, 1, 2, tokens=16)
    assert follower.tally.states == ["connecting", "live"]


@pytest.mark.parametrize("greeting", [b"\x16\x03\x01\x02\x00\x01\x00" + bytes(500), b"\x01\x00\x02\x00x"])
async def test_who_does_not_greet_as_an_engine_changes_nothing(engine, intake, follower, greeting):
    """A port scan, a TLS client: libzmq takes them for ZMTP 1.0, and cannot tell their connection."""
    await engine.subscribed()
    await follow(follower, intake, engine.replay)
    host, _, port = intake.address.removeprefix("tcp://").rpartition(":")
    _, stranger = await asyncio.open_connection(host, int(port))
    stranger.write(greeting)
    await stranger.drain()
    await engine.publish(stored([11], ids(1)))
    await held(follower, 0, 1)
    stranger.close()
    await stranger.wait_closed()
    await engine.publish(stored([12], ids(2), parent=11))
    await held(follower, 0, 1, 2)


async def test_engines_are_told_apart_by_their_whole_topic(intake, follower, tally):
    engines = [Connecting(intake, topic) for topic in ("kv", "kv@a", "kv@ab")]
    for number, one in enumerate(engines):
        await one.start()
        await one.subscribed()
        await follow(follower, intake, one.replay, one.topic.decode())
        await one.publish(stored([11], ids(number)))
    for number in range(3):
        await held(follower, number, number)
        assert [tokens_held(follower.index, number, ids(other)) for other in range(3) if other != number] == [0, 0]
    assert not tally.events
    for one in engines:
        await one.stop()


async def test_each_rank_has_a_port_of_its_own(intake, follower):
    ranks = [Connecting(intake, offset=rank) for rank in range(3)]
    for number, rank in enumerate(ranks):
        await follow(follower, intake, None, offset=number)
        await rank.start()
        await rank.subscribed()
        await rank.publish(stored([11], ids(number)))
        await held(follower, number, number)
    assert [tokens_held(follower.index, 0, ids(number)) for number in range(3)] == [16, 0, 0]
    for rank in ranks:
        await rank.stop()


async def test_models_on_one_engine_hear_the_same(engine, intake, follower):
    await engine.subscribed()
    await follow(follower, intake, None)
    await follow(follower, intake, None)
    await engine.publish(stored([11], ids(1)))
    await held(follower, 0, 1)
    await held(follower, 1, 1)


async def test_a_lost_message_is_asked_for_again(engine, intake, follower):
    await engine.subscribed()
    await follow(follower, intake, engine.replay)
    await engine.publish(stored([11], ids(1)))
    await state(follower, "live")
    engine.lose = 1
    await engine.publish(stored([12], ids(2), parent=11))
    await engine.publish(stored([13], ids(3), parent=12))
    await held(follower, 0, 1, 2, 3)
    # It is told when the answer has come to its end, behind the last message.
    await eventually(lambda: follower.tally.gaps == {"replayed": 1}, "the gap is told")


async def test_without_replay_a_gap_makes_it_partial(engine, intake, follower):
    await engine.subscribed()
    stream = await follow(follower, intake, None)
    await engine.publish(stored([11], ids(1)))
    await held(follower, 0, 1)
    assert stream.synced.is_set()
    assert follower.tally.states == ["connecting", "partial", "live"]
    engine.lose = 1
    await engine.publish(stored([12], ids(2), parent=11))
    await engine.publish(stored([13], ids(3)))
    await held(follower, 0, 3)
    assert follower.tally.gaps == {"lost": 1}
    assert follower.tally.states[-1] == "partial"


@pytest.mark.parametrize("with_replay", [True, False])
async def test_numbers_that_go_back_are_another_process(engine, intake, follower, with_replay):
    await engine.subscribed()
    await follow(follower, intake, engine.replay if with_replay else None)
    for number in range(3):
        await engine.publish(stored([11 + number], ids(number)))
    await held(follower, 0, 2)
    await state(follower, "live")
    await engine.restart()
    await engine.subscribed()
    await engine.publish(stored([21], ids(7)))
    await held(follower, 0, 2, tokens=0)
    await held(follower, 0, 7)
    await state(follower, "live")


async def test_a_restart_is_noticed_though_the_engine_says_nothing(engine, intake, follower):
    await engine.subscribed()
    await follow(follower, intake, engine.replay)
    await engine.publish(stored([11], ids(1)))
    await held(follower, 0, 1)
    await engine.restart()
    await held(follower, 0, 1, tokens=0)
    await state(follower, "connecting")


async def test_a_restart_that_passes_the_old_number_is_noticed(engine, intake, follower):
    await engine.subscribed()
    await follow(follower, intake, engine.replay)
    await engine.publish(stored([11], ids(1)))
    await held(follower, 0, 1)
    await engine.stop()
    engine.kept = {number: payload(stored([20 + number], ids(20 + number))) for number in range(3)}
    engine.next = 3
    await engine.start()
    await engine.subscribed()
    await engine.publish(stored([23], ids(23)))
    await held(follower, 0, 23)
    assert [tokens_held(follower.index, 0, ids(number)) for number in (1, 20, 21, 22)] == [0, 16, 16, 16]


async def test_a_lost_connection_is_told(engine, intake, follower):
    await engine.subscribed()
    await follow(follower, intake, engine.replay)
    await engine.publish(stored([11], ids(1)))
    await state(follower, "live")
    await engine.stop()
    await state(follower, "connecting")
    await engine.start()
    await engine.subscribed()
    await engine.publish(stored([12], ids(2), parent=11))
    await held(follower, 0, 1, 2)
    await state(follower, "live")


async def test_an_engine_that_was_never_heard_is_estimated(intake, follower):
    await follow(follower, intake, None)
    follower.index.placed(follower.index.keys(ids(1), 17, True, None, None), endpoint(0))
    match = follower.index.match(follower.index.keys(ids(1), 17, True, None, None), 17, [endpoint(0)])[0]
    assert match.source is Source.ESTIMATED


async def test_topics_that_nobody_has_are_counted_and_logged_once(intake, follower, tally, caplog):
    strange = Connecting(intake, "kv@elsewhere@m")
    await strange.start()
    await strange.subscribed()
    for _ in range(3):
        await strange.publish(stored([11], ids(1)))
    await eventually(lambda: tally.events["unknown-topic"] == 3, "all are counted")
    await strange.send_frames(b"two", b"frames")
    await eventually(lambda: tally.events["unknown-topic"] == 4, "and what is no message, too")
    assert caplog.text.count("kv@elsewhere@m") == 1
    assert intake.strangers == {b"kv@elsewhere@m", b""}
    for number in range(2 * STRANGERS):
        await strange.send_frames(f"t{number}".encode(), bytes(8), b"")
    await eventually(lambda: tally.events["unknown-topic"] == 4 + 2 * STRANGERS, "they are counted")
    assert len(intake.strangers) == STRANGERS, "and not remembered without end"
    await strange.stop()


async def test_a_topic_that_will_be_asked_for_is_no_stranger(tally, caplog):
    intake = Intake("tcp://127.0.0.1:0", [TOPIC], tally)
    intake.start()
    early, late = Connecting(intake), Connecting(intake, "late")
    for one in (early, late):
        await one.start()
        await one.subscribed()
        await one.publish(stored([11], ids(1)))
    await eventually(lambda: tally.events["unknown-topic"], "the other is heard")
    assert intake.strangers == {b"late"}
    for one in (early, late):
        await one.stop()
    await intake.close()


async def test_of_two_engines_with_one_topic_the_later_is_heard(engine, intake, follower, tally, caplog):
    await engine.subscribed()
    await follow(follower, intake, None)
    await engine.publish(stored([11], ids(1)))
    await held(follower, 0, 1)
    other = Connecting(intake)
    await other.start()
    await other.subscribed()
    await other.publish(stored([21], ids(7)))
    await eventually(lambda: tokens_held(follower.index, 0, ids(7)) == 16, "the later one is heard")
    for number in range(3):
        await engine.publish(stored([12 + number], ids(12 + number)))
    await eventually(lambda: tally.events["doubled-topic"] == 3, "the other is counted")
    assert caplog.text.count("from two engines") == 1
    assert tokens_held(follower.index, 0, ids(12)) == 0
    await other.stop()


async def test_a_port_that_is_taken_is_said(intake, tally, follower):
    other = Intake(intake.address, [], tally)
    with pytest.raises(zmq.ZMQError):
        other.start()
    await other.close()


async def test_a_ranks_port_that_is_taken_is_tried_again(intake, follower):
    host, _, port = intake.address_of(1).removeprefix("tcp://").rpartition(":")
    taken = socket.create_server((host, int(port)))
    stream = follower.follow_from(Expected(intake, TOPIC, 1), None)
    await stream.synced.wait()
    assert follower.tally.events["failed"] >= 1
    taken.close()
    rank = Connecting(intake, offset=1)
    await rank.start()
    await eventually(lambda: 1 in intake._ports and intake.port(1).voices, "it listens")
    await rank.subscribed()
    await rank.publish(stored([11], ids(1)))
    await state(follower, "live")
    await rank.stop()


async def test_what_nobody_reads_is_bounded():
    line = Line()
    for number in range(WAITING + 10):
        line.put([b"t", number.to_bytes(8, "big"), b""])
    taken = []
    while (item := line.take()) is not None:
        taken.append(item)
    assert len(taken) == WAITING + 1
    assert taken[-1] is Change.PERHAPS, "what was dropped is asked for"


async def test_bytes_that_nobody_reads_are_bounded():
    line, frames = Line(), [b"t", bytes(8), b"x" * (MAX_MESSAGE - 9)]
    for _ in range(20):
        line.put(frames)
    most = WAITING_BYTES // MAX_MESSAGE
    assert [line.take() for _ in range(most + 2)] == [frames] * most + [Change.PERHAPS, None]
    line.put(frames)
    assert line.take() == frames, "it is given back as it is read"


async def test_what_may_have_happened_is_told_once():
    line = Line()
    for _ in range(5):
        line.put(Change.PERHAPS)
    assert [line.take(), line.take()] == [Change.PERHAPS, None]
    assert await line.bell.wait(0)
    waiting = asyncio.create_task(line.bell.wait())
    await asyncio.sleep(0)
    line.put(Change.PERHAPS)
    async with asyncio.timeout(10):
        assert await waiting


async def test_an_engine_without_replay_is_asked_before_it_is_heard(engine, intake):
    follower = Follower(reannounce=3)
    await engine.subscribed()
    await follow(follower, intake, None)
    keys = follower.index.keys(ids(1), 17, True, None, None)
    await eventually(lambda: follower.index.asks(0, keys), "the first prompt asks")
    await engine.publish(stored([11], ids(1)))
    await state(follower, "live")
    assert not follower.index.asks(0, keys), "it has told all it holds"
    engine.lose = 1
    await engine.publish(stored([12], ids(2)))
    await engine.publish(stored([13], ids(3)))
    await state(follower, "partial")
    assert [follower.index.asks(0, keys) for _ in range(4)] == [True, True, True, False]
    await follower.close()
