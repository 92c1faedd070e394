"""Prompts that keep the tokenizer's threads busy: who else asks must not wait behind them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import orjson
import pytest

from simulator.tokenizer import build_tokenizer
from tests.attack.gateway import MIB, Attacked, attacked
from tests.support.scripted_engine import ScriptedEngine
from tests.support.wire import raw_client, raw_post

COMPLETIONS = "/v1/completions"
LONG = 8
WORDS = [bytes(f"w{number} ", "ascii") for number in range(1000)]


def post(characters: int, mark: int = 0) -> bytes:
    text = b"%d " % mark + b"".join(WORDS[number * (mark + 7) % 1000] for number in range(characters // 5))
    return raw_post(orjson.dumps({"model": "sim", "prompt": text.decode()}), path=COMPLETIONS)


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tokenizer(tmp_path_factory.mktemp("tokenizer"))


async def _ask(gateway: Attacked, request: bytes, name: str, answered: list[str]) -> None:
    async with raw_client(gateway.url) as client:
        await client.say(request)
        reply = await client.reply()
        assert reply.status == 200, reply
    answered.append(name)


async def _estimated(gateway: Attacked) -> int:
    lines = (await gateway.metrics()).splitlines()
    return sum(int(float(line.split()[-1])) for line in lines if 'reason="too-long"' in line)


async def test_prompts_that_no_engine_takes(tmp_path, tokenizer):
    """[tokenizer_queue] The engine has told that it takes 4,096 tokens: they are estimated, and nobody encodes them."""
    answered: list[str] = []
    async with (
        ScriptedEngine() as engine,
        attacked(tmp_path, engine.url, model={"tokenizer": str(tokenizer)}) as gateway,
    ):
        await _ask(gateway, post(1_000), "first", answered)
        gateway.forget_peak()
        before, cpu = gateway.rss(), gateway.cpu()
        await asyncio.gather(
            *(_ask(gateway, post(7_900_000, number), "long", answered) for number in range(LONG)),
            _ask(gateway, post(7_500, 99), "short", answered),
        )
        assert await _estimated(gateway) == LONG
        assert gateway.peak() - before < 700 * MIB, "one body of 8 MB each, three times; encoded they took 0.9 GB each"
        assert gateway.cpu() - cpu < 8, "encoded they take some 3 seconds each"
        gateway.unharmed()


async def test_long_prompts_that_an_engine_may_take(tmp_path, tokenizer):
    """[tokenizer_queue] They are encoded, but whoever comes later with less goes before those that still wait."""
    answered: list[str] = []
    async with ScriptedEngine() as engine:
        model = {"tokenizer": str(tokenizer), "served_name": "unlisted"}  # of which the engine tells no length
        async with attacked(tmp_path, engine.url, model=model) as gateway:
            async with asyncio.TaskGroup() as group:
                for number in range(LONG):
                    group.create_task(_ask(gateway, post(2_000_000, number), "long", answered))
                group.create_task(_ask(gateway, post(7_500, 99), "short", answered))
            assert len(answered) == LONG + 1
            assert answered.index("short") <= 4, answered
            assert await _estimated(gateway) == 0
            gateway.unharmed()
