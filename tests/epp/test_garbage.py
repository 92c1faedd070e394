"""Covers: gateway/epp/call.py, gateway/epp/transport/call.py.

What a gateway's call leaves behind: nothing that only the garbage collector could free, which seldom comes.
"""

from __future__ import annotations

import pytest

from tests.support.engines import simulated
from tests.support.ext_proc import picker_config, picking
from tests.support.garbage import ours
from tests.support.wait import eventually

STREAM = {"model": "sim", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4, "stream": True}


@pytest.mark.parametrize("body", [STREAM, STREAM | {"model": "unknown"}, None], ids=["served", "refused", "bodyless"])
@pytest.mark.parametrize("mode", ["full", "ends", "request"])
async def test_a_call_leaves_no_cycle(kept, mode, body):
    async with simulated() as server, picking(picker_config(server.url), modes=mode) as it:
        for turn in range(2):
            for _ in range(5):
                if body is None:
                    asked = await it.front.ask(None, method="GET", path="/v1/models")
                    await asked.answered()
                    asked.call.reset()
                else:
                    await it.front.post(body)
            await eventually(lambda: not it.listeners._server.calls, "the calls are over")
            await eventually(it.running.idle)
            if turn == 0:
                ours()  # what is made once
        assert ours() == []
