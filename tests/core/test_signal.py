from __future__ import annotations

import asyncio

from gateway.core.signal import Signal


async def test_a_ring_is_kept_for_who_comes_later():
    signal = Signal()
    signal.set()
    signal.set()
    assert await signal.wait(0)
    assert not await signal.wait(0)
    waiting = asyncio.create_task(signal.wait())
    await asyncio.sleep(0)
    signal.set()
    waiting.cancel()
    await asyncio.wait([waiting])
    assert waiting.cancelled()
    assert await signal.wait(0), "who was called away has not heard it"


async def test_whether_someone_waits_is_known():
    signal = Signal()
    assert not signal.waited_for
    waiting = asyncio.create_task(signal.wait())
    await asyncio.sleep(0)
    assert signal.waited_for
    signal.set()
    assert not signal.waited_for, "it is about to go on"
    await waiting
    assert not signal.waited_for
