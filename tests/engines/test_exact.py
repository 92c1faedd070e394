"""What ``/readyz`` says of a model's tokens is true of real engines: where it says exact, counts and hits are theirs.

Two engines of the same tiny model: one renders its chats with the template, the other by vLLM's own code for DeepSeek
V3.2, which the gateway does not have and asks the engine for.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from gateway.core.observer import Settled
from tests.engines.chats import WEATHER, assistant, chat, system, user
from tests.engines.engine import Engine, serving
from tests.support.gateway import PATIENT_FLEET, Running, config_for, running
from tests.support.wait import eventually

RULES = system("You are a careful assistant. " * 12)
TURNS = [user("What is the weather in Paris today?"), assistant("It is sunny. " * 10), user("And tomorrow, in Rome?")]
CHATS = [
    chat(RULES, TURNS[0]),
    chat(RULES, *TURNS),
    chat(RULES, *TURNS),
    chat(RULES, TURNS[0], tools=[WEATHER]),
]


@pytest.fixture(scope="module")
def two(engine_venv: Path, model_folder: Path, run_folder: Path) -> Iterator[Mapping[str, Engine]]:
    own = ("--tokenizer-mode", "deepseek_v32")
    engines = {
        "template": Engine("template", engine_venv, model_folder, run_folder),
        "code": Engine("code", engine_venv, model_folder, run_folder, flags=own),
    }
    with serving(*engines.values()):
        yield engines


@pytest.fixture(scope="module")
def deepseek(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The engine's tokenizer, as the folder of a DeepSeek V3.2 has it."""
    folder = tmp_path_factory.mktemp("deepseek")
    for file in model_folder.iterdir():
        if file.suffix in (".json", ".jinja"):
            shutil.copy(file, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["DeepseekV32ForCausalLM"]}))
    return folder


async def send(gateway: Running, body: Mapping[str, Any]) -> Settled:
    count = len(gateway.lines)
    answer = await gateway.client.post("/v1/chat/completions", json={"model": "sim", "max_tokens": 1, **body})
    answer.raise_for_status()
    await eventually(lambda: len(gateway.lines) > count, "it is settled")
    return gateway.lines[-1]


async def told(gateway: Running) -> Mapping[str, Any]:
    return dict((await gateway.client.get("/readyz")).json()["models"]["sim"])


@pytest.mark.parametrize("way", ["template", "code"])
async def test_exact_is_true(two: Mapping[str, Engine], model_folder: Path, deepseek: Path, way: str) -> None:
    tokenizer = deepseek if way == "code" else model_folder
    async with running(config_for(two[way].url, tokenizer=str(tokenizer), fleet=PATIENT_FLEET)) as gateway:
        assert await gateway.gateway.feed.synced(10)
        asked = (await told(gateway))["tokens"].startswith("exact if an engine reports the token ids of chats")
        assert asked == (way == "code")
        for body in CHATS:
            line = await send(gateway, body)
            assert line.exact
            assert line.prompt_tokens == line.reported_prompt_tokens
            assert line.expected_hit == line.cached_tokens
        assert sum(line.expected_hit for line in gateway.lines) > 0
        assert (await told(gateway))["tokens"] == "exact"
        assert (await told(gateway))["exact"] == 1.0
        assert (await told(gateway))["differing"] == {}


async def test_what_an_engine_cannot_be_asked_for_is_not_exact(two: Mapping[str, Engine], deepseek: Path) -> None:
    """``/tokenize`` does not know of the effort, and the render route is switched off."""
    async with running(config_for(two["code"].url, tokenizer=str(deepseek), fleet=PATIENT_FLEET)) as gateway:
        assert (await send(gateway, CHATS[0])).exact
        assert not (await send(gateway, {**CHATS[0], "reasoning_effort": "low"})).exact
        assert (await told(gateway))["tokens"].startswith("exact for 50 % of prompts, else renderer (DeepSeek V3.2")
        assert 'kvgate_prompts_exact_ratio{model="sim"} 0.5' in await gateway.metrics()
