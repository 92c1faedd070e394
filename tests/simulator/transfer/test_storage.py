"""Shared storage: what one engine computed another one finds, as far as vLLM's example connector does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from simulator.settings import EngineSettings
from tests.simulator.conftest import Running, Start
from tests.simulator.transfer.conftest import MakePair, Pair, body, plain


@pytest.fixture
async def two(pair: MakePair, tmp_path: Path) -> Pair:
    return await pair(connector="shared-storage", storage=str(tmp_path))


async def external(running: Running) -> float:
    return await running.metric("vllm:prompt_tokens_by_source_total", source="external_kv_transfer")


async def complete(running: Running, ids: list[int], **more: Any) -> Any:
    asked = {"prompt": ids, "max_tokens": 3, "ignore_eos": True, **more}
    answer = await running.client.post("/v1/completions", json=asked)
    return [choice["text"] for choice in answer.json()["choices"]]


def stored(place: Path) -> list[tuple[str, list[str]]]:
    """The folders, and the files in each."""
    return [(folder.name, [path.name for path in folder.iterdir()]) for folder in place.iterdir()]


async def test_a_prompt_is_found_by_its_whole_blocks(two: Pair, tmp_path: Path) -> None:
    first = await plain(two.prefill, body(max_tokens=1))
    [(folder, files)] = stored(tmp_path)
    assert len(folder) == 32
    assert files == ["model.layers.0.self_attn.attn.safetensors"]
    answer = await plain(two.decode, body())
    assert answer[0]["message"]["content"].startswith(first[0]["message"]["content"])
    assert await external(two.decode) == 96, "of 109 tokens"
    assert await two.decode.metric("vllm:prompt_tokens_cached_by_source_total", source="external_unspecified") == 96
    assert await two.decode.metric("vllm:prompt_tokens_cached_by_source_total", source="p2p") == 0
    assert len(stored(tmp_path)) == 1, "what was loaded is not stored again"
    await two.settled()


async def test_nothing_waits(two: Pair) -> None:
    await plain(two.prefill, body())
    await plain(two.decode, body())
    assert await two.decode.metric("vllm:num_requests_kv_fetch_by_stage", stage="in_progress") == 0


@pytest.mark.parametrize(("length", "found"), [(48, 32), (49, 0), (50, 48), (64, 48), (16, 0)])
async def test_how_much_of_which_prompts(two: Pair, length: int, found: int) -> None:
    ids = [65 + index % 26 for index in range(length)]
    assert await complete(two.prefill, ids) == await complete(two.decode, ids)
    assert await external(two.decode) == found


async def test_a_longer_prompt_does_not_find_a_shorter_one(two: Pair) -> None:
    await complete(two.prefill, [65] * 50)
    await complete(two.decode, [65] * 80)
    assert await external(two.decode) == 0


async def test_parameters_are_not_looked_at(two: Pair) -> None:
    assert await two.begin(body()) is None
    assert (await two.end(body(), {"do_remote_prefill": True})).json()["choices"] == await plain(two.prefill, body())


async def test_an_adapters_prompt_is_taken_for_the_models_own(pair: MakePair, start: Start, tmp_path: Path) -> None:
    two = await pair(connector="shared-storage", storage=str(tmp_path), adapters=("lora",))
    await complete(two.prefill, [65] * 50, model="lora")
    assert await complete(two.decode, [65] * 50) != await complete(await start(connector="none"), [65] * 50)
    assert await external(two.decode) == 48


def test_it_needs_a_folder() -> None:
    with pytest.raises(ValueError, match="storage"):
        EngineSettings(connector="shared-storage")
