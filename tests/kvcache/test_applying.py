from __future__ import annotations

import asyncio

import pytest

from gateway.kvcache.applying import SLICE, Applying
from tests.kvcache.conftest import Tally, ids, index_of, payload, removed, stored, tokens_held


@pytest.mark.parametrize("count", [SLICE - 1, SLICE, 3 * SLICE + 5])
async def test_a_long_removal_lets_others_run_between_its_slices(count: int) -> None:
    index, tally = index_of(), Tally()
    applying = Applying(0, "e0", None, index, tally)
    numbers = list(range(1, count + 1))
    await applying.take(payload(stored(numbers, ids(*numbers))))
    assert tokens_held(index, 0, ids(*numbers)) == 16 * count
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    running = asyncio.create_task(others())
    await applying.take(payload(removed(*numbers)))
    running.cancel()
    assert turns >= count // SLICE
    assert tokens_held(index, 0, ids(*numbers)) == 0
