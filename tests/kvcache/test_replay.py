from __future__ import annotations

import pytest

from gateway.kvcache.replay import ReplayBroken, replay, sequence_of
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


def test_a_number_is_read_from_the_end():
    assert [sequence_of(frames) for frames in captured("a_replay_from0.bin")[:2]] == [0, 1]
    assert sequence_of([b"", (7).to_bytes(8, "big"), b"payload"]) == 7  # engines before 0.32: no topic
    assert sequence_of([b"", b"", END, b""]) == 2**64 - 1
    assert sequence_of([b"x"]) is sequence_of([b"topic", b"7", b""]) is sequence_of([]) is None
