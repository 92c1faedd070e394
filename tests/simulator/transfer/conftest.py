"""Pairs of engines that hand KV over to each other, and what a gateway between them would send."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests.simulator.conftest import Running, Start
from tests.support.wait import eventually

CHAT = "/v1/chat/completions"
PREFILL = {"do_remote_decode": True, "do_remote_prefill": False}


def body(text: str = "a" * 90, max_tokens: int = 6, **more: Any) -> dict[str, Any]:
    """A chat; its prompt is 19 tokens longer than its text."""
    message = {"role": "user", "content": text}
    return {"messages": [message], "max_tokens": max_tokens, "ignore_eos": True, **more}


async def plain(running: Running, asked: dict[str, Any]) -> Any:
    """What an engine answers on its own."""
    return (await running.client.post(CHAT, json=asked)).json()["choices"]


@dataclass
class Pair:
    """A prefill engine and a decode engine."""

    prefill: Running
    decode: Running

    async def begin(self, asked: dict[str, Any], params: Any = PREFILL, **headers: str) -> Any:
        """The prefill leg of a body: its ``kv_transfer_params``."""
        leg = {**asked, "max_tokens": 1, "kv_transfer_params": params}
        answer = await self.prefill.client.post(CHAT, json=leg, headers=headers)
        assert answer.status_code == 200, answer.text
        return answer.json()["kv_transfer_params"]

    async def end(self, asked: dict[str, Any], params: Any, **headers: str) -> httpx.Response:
        """The decode leg."""
        return await self.decode.client.post(CHAT, json={**asked, "kv_transfer_params": params}, headers=headers)

    async def split(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Both legs, one after the other."""
        answer = await self.end(asked, await self.begin(asked))
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    async def settled(self) -> None:
        """Wait until neither holds a block for anybody."""
        for running in (self.prefill, self.decode):
            for engine in running.server.service.engines:
                await eventually(lambda engine=engine: engine.pool.usage == 0, "no block is in use")  # type: ignore[misc]


MakePair = Callable[..., Awaitable[Pair]]


@pytest.fixture
def pair(start: Start) -> MakePair:
    """Start two engines with these settings; ``prefill`` and ``decode`` are settings of one of them."""

    async def make(prefill: dict[str, Any] | None = None, decode: dict[str, Any] | None = None, **both: Any) -> Pair:
        return Pair(await start(**both, **(prefill or {})), await start(**both, **(decode or {})))

    return make
