from __future__ import annotations

import asyncio

import pytest

from gateway.core.tasks import TaskSet
from gateway.kvcache.events.decode import MAX_MESSAGE
from gateway.kvcache.events.replay import ReplayBroken, ReplayEndless, replay, sequence_of
from tests.kvcache.conftest import END, captured


async def read(address, start, timeout=5.0):
    return [message async for message in replay(address, start, timeout)]


async def test_it_reads_from_where_it_is_asked(engine):
    for number in range(5):
        await engine.send(b"%d" % number)
    assert await read(engine.replay, 3) == [(3, b"3"), (4, b"4")]
    assert await read(engine.replay, 5) == []


async def test_the_first_may_be_later(engine):
    for number in range(5):
        await engine.send(b"%d" % number)
    del engine.kept[0]
    assert [sequence for sequence, _ in await read(engine.replay, 0)] == [1, 2, 3, 4]


async def test_a_hole_is_no_answer(engine):
    for number in range(5):
        await engine.send(b"%d" % number)
    engine.holes = {2}
    got = []
    with pytest.raises(ReplayBroken, match="2 to 2 are missing"):
        async for sequence, _ in replay(engine.replay, 0, 5.0):
            got.append(sequence)
    assert got == [0, 1]


async def test_silence_is_no_answer(engine):
    engine.deaf = True
    with pytest.raises(ReplayBroken, match="nothing came"):
        await read(engine.replay, 0, timeout=0.02)


async def test_an_answer_without_end_is_given_up_while_others_have_their_turns(engine, monkeypatch):
    monkeypatch.setattr("gateway.kvcache.events.replay.MAX_MESSAGES", 3000)
    engine.endless = b"x"
    turns, tasks = 0, TaskSet()

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    tasks.start(others(), name="others")
    got = []
    with pytest.raises(ReplayEndless, match="no end: more than 3000 messages"):
        async for sequence, _ in replay(engine.replay, 0, 5.0):
            got.append(sequence)
    await tasks.close()
    assert got == list(range(3000)), "what came before is good"
    assert turns > 3000 / 64


async def test_numbers_that_are_none_of_ours_count_as_well(engine, monkeypatch):
    """Else they could go on for ever without a message that is read."""
    monkeypatch.setattr("gateway.kvcache.events.replay.MAX_MESSAGES", 500)
    engine.endless = b"x"
    engine.topic = b"kv"
    with pytest.raises(ReplayEndless):
        async with asyncio.timeout(30):
            async for _ in replay(engine.replay, 2**63, 5.0):
                engine.asked[-1] = 0  # from now on it says what is long known


async def test_what_waits_to_be_read_is_bounded(engine, monkeypatch):
    """Whoever reads slowly reads on from there, in another answer."""
    monkeypatch.setattr("gateway.kvcache.events.replay.MAX_BACKLOG", 1_000_000)
    engine.endless = b"x" * 10_000
    messages = replay(engine.replay, 0, 5.0)
    got = [(await anext(messages))[0]]
    before = engine.said
    with pytest.raises(ReplayBroken, match="more than 1000000 bytes") as raised:
        while True:
            await asyncio.sleep(0.001)  # applying is slow
            got.append((await anext(messages))[0])
    assert not isinstance(raised.value, ReplayEndless)
    assert got == list(range(len(got)))
    assert before <= engine.said


async def test_a_message_that_is_larger_than_what_is_decoded_is_not_received(engine):
    for size in (1, MAX_MESSAGE + 1, 1):
        await engine.send(b"x" * size)
    got = []
    with pytest.raises(ReplayBroken, match="nothing came"):
        async for sequence, _ in replay(engine.replay, 0, 0.5):
            got.append(sequence)
    assert got == [0]


async def test_a_replay_that_is_cancelled_leaves_no_task_and_no_socket(engine):
    engine.endless = b"x"
    before = len(asyncio.all_tasks())
    tasks, came = TaskSet(), asyncio.Event()

    async def reads() -> None:
        async for _ in replay(engine.replay, 0, 5.0):
            came.set()

    tasks.start(reads(), name="reads")
    await came.wait()
    await tasks.close()
    await asyncio.sleep(0)
    assert len(asyncio.all_tasks()) == before


def test_a_number_is_read_from_the_end():
    assert [sequence_of(frames) for frames in captured("a_replay_from0.bin")[:2]] == [0, 1]
    assert sequence_of([b"", (7).to_bytes(8, "big"), b"payload"]) == 7  # engines before 0.32: no topic
    assert sequence_of([b"", b"", END, b""]) == 2**64 - 1
    assert sequence_of([b"x"]) is sequence_of([b"topic", b"7", b""]) is sequence_of([]) is None
