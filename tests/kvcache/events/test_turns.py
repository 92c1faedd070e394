"""When other tasks have their turns."""

from __future__ import annotations

import asyncio

from gateway.kvcache.events.decode import SLICE
from gateway.kvcache.events.turns import Turns


async def test_others_have_their_turn_before_more_than_a_slice():
    ran: list[str] = []
    turns = Turns()
    asyncio.get_running_loop().call_soon(ran.append, "another")
    await turns.take(SLICE - 1)
    await turns.take(1)
    assert (ran, turns.work) == ([], SLICE)
    await turns.take(3)
    assert (ran, turns.work) == (["another"], 3)
