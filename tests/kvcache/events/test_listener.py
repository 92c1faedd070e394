from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest
import zmq

from gateway.core.prompt import Prompt
from gateway.framework.match import Source
from gateway.kvcache.events.decode import MAX_MESSAGE
from gateway.kvcache.events.listener import (
    MAX_UNKNOWN,
    MAX_WAITING,
    MAX_WAITING_BYTES,
    EventListener,
    InboxQueue,
    ListenerSource,
    Publisher,
)
from gateway.kvcache.events.poller import Poller
from gateway.kvcache.events.sockets import Change
from gateway.kvcache.events.stream import EventStream
from tests.kvcache.conftest import (
    TICK,
    Follower,
    ScriptedPublisher,
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


class Connecting(ScriptedPublisher):
    """An engine whose PUB socket connects to ``listener``."""

    def __init__(self, listener: EventListener, topic: str = TOPIC, offset: int = 0) -> None:
        super().__init__()
        self.topic = topic.encode()
        self.address = listener.address_of(offset)
        self.binds = False


@pytest.fixture
async def listener(tally: Tally) -> AsyncIterator[EventListener]:
    one, poller = EventListener(f"tcp://127.0.0.1:{free_in_a_row(2)}", [], tally), Poller(TICK)
    one.start(poller)
    yield one
    await one.close()
    assert poller._timer is None, "nothing is left behind"


@pytest.fixture
async def engine(listener: EventListener) -> AsyncIterator[ScriptedPublisher]:
    fake = Connecting(listener)
    await fake.start()
    yield fake
    await fake.stop()


async def follow(
    follower: Follower, listener: EventListener, replay: str | None, topic: str = TOPIC, offset: int = 0
) -> EventStream:
    """Listen for an engine: what it says from now on is heard."""
    publisher = listener.port(offset).publishers.setdefault(topic.encode(), Publisher())
    before = len(publisher.inboxes)
    stream = follower.follow_from(ListenerSource(listener, topic, offset), replay)
    await eventually(lambda: len(publisher.inboxes) > before, "its line is open")
    return stream


async def held(follower: Follower, slot: int, *numbers: int, tokens: int | None = None) -> None:
    wanted = 16 * len(numbers) if tokens is None else tokens
    await eventually(lambda: tokens_held(follower.index, slot, ids(*numbers)) == wanted, f"{numbers}: {wanted} tokens")


async def state(follower: Follower, wanted: str) -> None:
    await eventually(lambda: follower.tally.states[-1:] == [wanted], wanted)


async def test_history_comes_first_and_then_what_is_said(engine, listener, follower):
    engine.send_later(stored([11], ids(1)))
    await engine.subscribed()
    stream = await follow(follower, listener, engine.replay)
    async with asyncio.timeout(30):
        await stream.synced.wait()
    assert tokens_held(follower.index, 0, ids(1)) == 16
    assert follower.tally.states == ["connecting"], "nobody knows yet that it is connected"
    await engine.publish(stored([12], ids(2), parent=11))
    await held(follower, 0, 1, 2)
    await engine.publish(removed(12))
    await held(follower, 0, 1, 2, tokens=16)
    assert follower.tally.states == ["connecting", "live"]


@pytest.mark.parametrize("greeting", [b"\x16\x03\x01\x02\x00\x01\x00" + bytes(500), b"\x01\x00\x02\x00x"])
async def test_who_does_not_greet_as_an_engine_changes_nothing(engine, listener, follower, greeting):
    """A port scan, a TLS client: libzmq takes them for ZMTP 1.0, and cannot tell their connection."""
    await engine.subscribed()
    await follow(follower, listener, engine.replay)
    host, _, port = listener.address.removeprefix("tcp://").rpartition(":")
    _, stranger = await asyncio.open_connection(host, int(port))
    stranger.write(greeting)
    await stranger.drain()
    await engine.publish(stored([11], ids(1)))
    await held(follower, 0, 1)
    stranger.close()
    await stranger.wait_closed()
    await engine.publish(stored([12], ids(2), parent=11))
    await held(follower, 0, 1, 2)


async def test_engines_are_told_apart_by_their_whole_topic(listener, follower, tally):
    engines = [Connecting(listener, topic) for topic in ("kv", "kv@a", "kv@ab")]
    for number, one in enumerate(engines):
        await one.start()
        await one.subscribed()
        await follow(follower, listener, one.replay, one.topic.decode())
        await one.publish(stored([11], ids(number)))
    for number in range(3):
        await held(follower, number, number)
        assert [tokens_held(follower.index, number, ids(other)) for other in range(3) if other != number] == [0, 0]
    assert not tally.events
    for one in engines:
        await one.stop()


async def test_each_rank_has_a_port_of_its_own(listener, follower):
    ranks = [Connecting(listener, offset=rank) for rank in range(3)]
    for number, rank in enumerate(ranks):
        await follow(follower, listener, None, offset=number)
        await rank.start()
        await rank.subscribed()
        await rank.publish(stored([11], ids(number)))
        await held(follower, number, number)
    assert [tokens_held(follower.index, 0, ids(number)) for number in range(3)] == [16, 0, 0]
    for rank in ranks:
        await rank.stop()


async def test_models_on_one_engine_hear_the_same(engine, listener, follower):
    await engine.subscribed()
    await follow(follower, listener, None)
    await follow(follower, listener, None)
    await engine.publish(stored([11], ids(1)))
    await held(follower, 0, 1)
    await held(follower, 1, 1)


async def test_a_lost_message_is_asked_for_again(engine, listener, follower):
    await engine.subscribed()
    await follow(follower, listener, engine.replay)
    await engine.publish(stored([11], ids(1)))
    await state(follower, "live")
    engine.lose = 1
    await engine.publish(stored([12], ids(2), parent=11))
    await engine.publish(stored([13], ids(3), parent=12))
    await held(follower, 0, 1, 2, 3)
    # It is told when the answer has come to its end, behind the last message.
    await eventually(lambda: follower.tally.gaps == {"replayed": 1}, "the gap is told")


async def test_without_replay_a_gap_makes_it_partial(engine, listener, follower):
    await engine.subscribed()
    stream = await follow(follower, listener, None)
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
async def test_numbers_that_go_back_are_another_process(engine, listener, follower, with_replay):
    await engine.subscribed()
    await follow(follower, listener, engine.replay if with_replay else None)
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


async def test_a_restart_is_noticed_though_the_engine_says_nothing(engine, listener, follower):
    await engine.subscribed()
    await follow(follower, listener, engine.replay)
    await engine.publish(stored([11], ids(1)))
    await held(follower, 0, 1)
    await engine.restart()
    await held(follower, 0, 1, tokens=0)
    await state(follower, "connecting")


async def test_a_restart_is_noticed_though_the_old_connection_is_lost_last(engine, listener, follower):
    """A network that loses the old process's farewell, or two threads of libzmq that are not equally quick."""
    await engine.subscribed()
    await follow(follower, listener, engine.replay)
    await engine.publish(stored([11], ids(1)))
    await held(follower, 0, 1)
    successor = Connecting(listener)
    await successor.start()
    await successor.subscribed()
    port = listener.port(0)
    await eventually(lambda: len(port._accepted) == 2 and port.idle, "its greeting is over", within=30)
    engine.kept.clear()  # as the successor's replay socket answers
    engine._pub.close(linger=0)
    await held(follower, 0, 1, tokens=0)
    await state(follower, "connecting")
    await successor.stop()


async def test_a_restart_that_passes_the_old_number_is_noticed(engine, listener, follower):
    await engine.subscribed()
    await follow(follower, listener, engine.replay)
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


async def test_a_lost_connection_is_told(engine, listener, follower):
    await engine.subscribed()
    await follow(follower, listener, engine.replay)
    await engine.publish(stored([11], ids(1)))
    await state(follower, "live")
    await engine.stop()
    await state(follower, "connecting")
    await engine.start()
    await engine.subscribed()
    await engine.publish(stored([12], ids(2), parent=11))
    await held(follower, 0, 1, 2)
    await state(follower, "live")


async def test_an_engine_that_was_never_heard_is_estimated(listener, follower):
    await follow(follower, listener, None)
    follower.index.placed(follower.index.keys(Prompt(ids(1), 17, True)), endpoint(0))
    match = follower.index.match(follower.index.keys(Prompt(ids(1), 17, True)), 17, [endpoint(0)])[0]
    assert match.source is Source.ESTIMATED


async def test_topics_that_nobody_has_are_counted_and_logged_once(listener, follower, tally, caplog):
    strange = Connecting(listener, "kv@elsewhere@m")
    await strange.start()
    await strange.subscribed()
    for _ in range(3):
        await strange.publish(stored([11], ids(1)))
    await eventually(lambda: tally.events["unknown-topic"] == 3, "all are counted")
    await strange.send_frames(b"two", b"frames")
    await eventually(lambda: tally.events["unknown-topic"] == 4, "and what is no message, too")
    assert caplog.text.count("kv@elsewhere@m") == 1
    assert listener.unknown_topics == {b"kv@elsewhere@m", b""}
    for number in range(2 * MAX_UNKNOWN):
        await strange.send_frames(f"t{number}".encode(), bytes(8), b"")
    await eventually(lambda: tally.events["unknown-topic"] == 4 + 2 * MAX_UNKNOWN, "they are counted")
    assert len(listener.unknown_topics) == MAX_UNKNOWN, "and not remembered without end"
    await strange.stop()


async def test_a_topic_that_will_be_asked_for_is_no_stranger(tally, caplog):
    listener = EventListener("tcp://127.0.0.1:0", [TOPIC], tally)
    listener.start(Poller(TICK))
    early, late = Connecting(listener), Connecting(listener, "late")
    for one in (early, late):
        await one.start()
        await one.subscribed()
        await one.publish(stored([11], ids(1)))
    await eventually(lambda: tally.events["unknown-topic"], "the other is heard")
    assert listener.unknown_topics == {b"late"}
    for one in (early, late):
        await one.stop()
    await listener.close()


async def test_of_two_engines_with_one_topic_the_later_is_heard(engine, listener, follower, tally, caplog):
    await engine.subscribed()
    await follow(follower, listener, None)
    await engine.publish(stored([11], ids(1)))
    await held(follower, 0, 1)
    other = Connecting(listener)
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


async def test_a_port_that_is_taken_is_said(listener, tally, follower):
    other = EventListener(listener.address, [], tally)
    with pytest.raises(zmq.ZMQError):
        other.start(Poller(TICK))
    await other.close()


async def test_a_ranks_port_that_is_taken_is_tried_again(listener, follower):
    host, _, port = listener.address_of(1).removeprefix("tcp://").rpartition(":")
    taken = socket.create_server((host, int(port)))
    stream = follower.follow_from(ListenerSource(listener, TOPIC, 1), None)
    await stream.synced.wait()
    assert follower.tally.events["failed"] >= 1
    taken.close()
    rank = Connecting(listener, offset=1)
    await rank.start()
    await eventually(lambda: 1 in listener._ports and listener.port(1).publishers, "it listens")
    await rank.subscribed()
    await rank.publish(stored([11], ids(1)))
    await state(follower, "live")
    await rank.stop()


async def test_what_nobody_reads_is_bounded():
    queue = InboxQueue()
    for number in range(MAX_WAITING + 10):
        queue.put([b"t", number.to_bytes(8, "big"), b""])
    taken = []
    while (item := queue.receive()) is not None:
        taken.append(item)
    assert len(taken) == MAX_WAITING + 1
    assert taken[-1] is Change.UNCERTAIN, "what was dropped is asked for"


async def test_bytes_that_nobody_reads_are_bounded():
    queue, frames = InboxQueue(), [b"t", bytes(8), b"x" * (MAX_MESSAGE - 9)]
    for _ in range(20):
        queue.put(frames)
    most = MAX_WAITING_BYTES // MAX_MESSAGE
    assert [queue.receive() for _ in range(most + 2)] == [frames] * most + [Change.UNCERTAIN, None]
    queue.put(frames)
    assert queue.receive() == frames, "it is given back as it is read"


async def test_what_may_have_happened_is_told_once():
    queue = InboxQueue()
    for _ in range(5):
        queue.put(Change.UNCERTAIN)
    assert [queue.receive(), queue.receive()] == [Change.UNCERTAIN, None]
    assert await queue.signal.wait(0)
    waiting = asyncio.create_task(queue.signal.wait())
    await asyncio.sleep(0)
    queue.put(Change.UNCERTAIN)
    async with asyncio.timeout(30):
        assert await waiting


async def test_an_engine_without_replay_is_asked_before_it_is_heard(engine, listener):
    follower = Follower(reannounce=3)
    await engine.subscribed()
    await follow(follower, listener, None)
    keys = follower.index.keys(Prompt(ids(1), 17, True))
    await eventually(lambda: follower.index.claim_reannounce(0, keys), "the first prompt asks")
    await engine.publish(stored([11], ids(1)))
    await state(follower, "live")
    assert not follower.index.claim_reannounce(0, keys), "it has told all it holds"
    engine.lose = 1
    await engine.publish(stored([12], ids(2)))
    await engine.publish(stored([13], ids(3)))
    await state(follower, "partial")
    assert [follower.index.claim_reannounce(0, keys) for _ in range(4)] == [True, True, True, False]
    await follower.close()


async def test_another_process_listens_beside_and_gets_the_engines_when_they_are_released(listener, follower, tally):
    engine = Connecting(listener)
    await engine.start()
    await engine.subscribed()
    await follow(follower, listener, engine.replay)
    await engine.publish(stored([11], ids(1)))
    await held(follower, 0, 1)
    alone, poller = EventListener(listener.address, [], tally), Poller(TICK)
    with pytest.raises(zmq.ZMQError, match="in use"):
        alone.start(poller)
    beside = EventListener(listener.address, [], tally)
    beside.start(poller, beside=True)
    try:
        stream = await follow(follower, beside, engine.replay)
        await listener.release()
        async with asyncio.timeout(30):
            await stream.synced.wait()
        await engine.subscribed()
        await engine.publish(stored([12], ids(2), parent=11))
        await held(follower, 1, 1, 2)
    finally:
        await beside.close()
        await alone.close()
        await engine.stop()


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "*", "lo"])
async def test_it_listens_on_every_kind_of_address(host, tally):
    one = EventListener(f"tcp://{host}:0", [], tally)
    one.start(Poller(TICK))
    port = int(one.address.rpartition(":")[2])
    assert port > 0
    for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        if host in ("*", {"127.0.0.1": "127.0.0.1", "::1": "[::1]"}[address]):
            with socket.socket(family) as engine:
                engine.connect((address, port))
    await one.close()
