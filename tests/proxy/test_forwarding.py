"""Covers: gateway/proxy/serving/forward.py, gateway/proxy/extras/id_forwarding.py, gateway/api/token_forwarding.py.

Prompts as the gateway's token ids (``tokens.forward``), to simulated engines that take them as vLLM does.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.api.token_forwarding import SLICE
from gateway.tokens import parity
from gateway.tokens.agreement import LEAST, Form
from gateway.tokens.settings import ForwardSettings
from simulator.server import EngineServer
from simulator.settings import EngineSettings
from simulator.tokenizer import build_tokenizer
from tests.support.engines import each_simulated, simulated
from tests.support.gateway import IN_TURN, PATIENT_FLEET, Running, config_for, running, split_config
from tests.support.wait import eventually

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "What is the weather in Paris?"}]
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"model": "sim", "messages": MESSAGES, "max_tokens": 4},
    COMPLETION: {"model": "sim", "prompt": "What is the weather in Paris?", "max_tokens": 4},
}
PATHS = pytest.mark.parametrize("path", list(BODIES))
FORWARD = ForwardSettings(forward=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tokenizer(tmp_path_factory.mktemp("tokenizers") / "one")


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer that makes other ids of any text."""
    return build_tokenizer(tmp_path_factory.mktemp("tokenizers") / "other", vocabulary=512)


def last(engine: EngineServer, path: str) -> dict[str, Any]:
    """The last body that was sent to it there."""
    return dict(json.loads(next(one.body for one in reversed(engine.received) if one.path == path)))


def as_ids(body: dict[str, Any]) -> bool:
    """Whether a body as an engine got it has the prompt as ids."""
    return isinstance(body.get("prompt"), list) or "prompt_token_ids" in (body.get("kv_transfer_params") or {})


async def ask(gateway: Running, path: str = CHAT, **more: Any) -> dict[str, Any]:
    """One answer, once its ids have been compared."""
    count = len(gateway.lines)
    answer = await gateway.client.post(path, json={**BODIES[path], **more})
    assert answer.status_code == 200, answer.text
    await eventually(lambda: len(gateway.lines) > count, "it is settled")
    await eventually(lambda: not gateway.gateway.rooms.token_audit.busy, "its ids are compared")
    return dict(answer.json())


@pytest.fixture
async def engine(folder: Path) -> AsyncIterator[EngineServer]:
    async with simulated(tokenizer=str(folder)) as engine:
        yield engine


@PATHS
async def test_the_engine_gets_ids_once_it_has_made_the_same(engine: EngineServer, folder: Path, path: str) -> None:
    async with running(config_for(engine.url, tokenizer=str(folder), tokens=FORWARD)) as gateway:
        first = await ask(gateway, path)
        assert last(engine, path) == BODIES[path]
        assert not as_ids(last(engine, "/tokenize"))
        second = await ask(gateway, path, kv_transfer_params={"prompt_token_ids": [1, 2], "do_remote_prefill": True})
        sent = last(engine, path)
        ids = sent["prompt"] if path == COMPLETION else sent.pop("kv_transfer_params")["prompt_token_ids"]
        assert sent == {**BODIES[path], **({"prompt": ids} if path == COMPLETION else {})}
        assert len(ids) == second["usage"]["prompt_tokens"]
        assert first["choices"] == second["choices"]
        assert first["usage"]["prompt_tokens"] == second["usage"]["prompt_tokens"]
        assert [line.by_ids for line in gateway.lines] == [False, True]


@PATHS
async def test_not_by_default(engine: EngineServer, folder: Path, path: str) -> None:
    async with running(config_for(engine.url, tokenizer=str(folder))) as gateway:
        for _ in range(3):
            await ask(gateway, path)
            assert last(engine, path) == BODIES[path]
    assert not [one for one in engine.received if one.path == "/tokenize"]


async def test_another_tokenizer_never_gets_ours(engine: EngineServer, other: Path) -> None:
    async with running(config_for(engine.url, tokenizer=str(other), tokens=FORWARD)) as gateway:
        for _ in range(LEAST + 2):
            await ask(gateway)
            assert not as_ids(last(engine, CHAT))
        assert not gateway.gateway.directory.runtimes[0].tokens.parity.trusted


async def test_a_count_that_is_our_own_is_no_evidence(engine: EngineServer, folder: Path) -> None:
    async with running(config_for(engine.url, tokenizer=str(folder), tokens=FORWARD)) as gateway:
        for _ in range(4):
            await ask(gateway)
        assert as_ids(last(engine, CHAT))
        assert 'kvgate_token_counts_compared_total{model="sim"} 1.0' in await gateway.metrics()


async def test_some_prompts_go_as_text_and_a_difference_ends_it(
    engine: EngineServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parity, "TRIED", 3)
    async with running(config_for(engine.url, tokenizer=str(folder), tokens=FORWARD)) as gateway:
        went = []
        for _ in range(7):
            await ask(gateway)
            went.append(as_ids(last(engine, CHAT)))
        assert went == [False, True, True, False, True, True, False]
        gateway.gateway.directory.runtimes[0].tokens.parity.compare_counts(
            gateway.lines[0].endpoint or "", Form.CHAT, 1, 2
        )
        await ask(gateway)
        assert not as_ids(last(engine, CHAT))
        await ask(gateway)
        assert as_ids(last(engine, CHAT)), "it has made the same ids again"


@pytest.mark.parametrize(
    ("path", "more"),
    [
        (CHAT, {"echo": True}),
        (CHAT, {"return_prompt_text": True}),
        (COMPLETION, {"echo": True}),
        (COMPLETION, {"suffix": None, "prompt": ["two", "prompts"]}),
        (COMPLETION, {"prompt": [5, 6, 7]}),
        (COMPLETION, {"truncate_prompt_tokens": 4}),
    ],
)
async def test_what_needs_its_text_keeps_it(
    engine: EngineServer, folder: Path, path: str, more: dict[str, Any]
) -> None:
    async with running(config_for(engine.url, tokenizer=str(folder), tokens=FORWARD)) as gateway:
        await ask(gateway, path)
        await ask(gateway, path, **more)
        assert last(engine, path) == {**BODIES[path], **more}
        await ask(gateway, path)
        assert as_ids(last(engine, path))


async def test_an_adapters_prompt_keeps_its_text(folder: Path) -> None:
    async with (
        simulated(tokenizer=str(folder), adapters=("lora",)) as engine,
        running(config_for(engine.url, tokenizer=str(folder), tokens=FORWARD)) as gateway,
    ):
        await ask(gateway)
        await ask(gateway, model="lora")
        assert last(engine, CHAT) == {**BODIES[CHAT], "model": "lora"}


async def test_long_prompts_are_whole(folder: Path) -> None:
    async with (
        simulated(tokenizer=str(folder), max_model_len=8 * SLICE) as engine,
        running(config_for(engine.url, tokenizer=str(folder), tokens=FORWARD, fleet=PATIENT_FLEET)) as gateway,
    ):
        text = "What is the weather in Paris? " * (SLICE // 3)
        await ask(gateway, COMPLETION)
        as_text = (await ask(gateway, COMPLETION, prompt=text, echo=True))["usage"]
        by_ids = (await ask(gateway, COMPLETION, prompt=text))["usage"]
        assert as_ids(last(engine, COMPLETION))
        assert as_text["prompt_tokens"] == by_ids["prompt_tokens"] > SLICE


async def test_each_attempt_is_made_for_its_engine(folder: Path) -> None:
    """The second engine is of a version that takes a completion's ids, and no chat's."""
    new, old = EngineSettings(tokenizer=str(folder)), EngineSettings(tokenizer=str(folder), version="0.31.0")
    async with each_simulated(new, old) as (first, second):
        config = config_for(
            first.url, second.url, tokenizer=str(folder), tokens=FORWARD, fleet=PATIENT_FLEET, **IN_TURN
        )
        async with running(config) as gateway:
            for _ in range(2):
                await ask(gateway, COMPLETION)
                await ask(gateway, COMPLETION)
            assert as_ids(last(first, COMPLETION))
            assert as_ids(last(second, COMPLETION))
            for _ in range(2):
                await ask(gateway)
            assert as_ids(last(first, CHAT))
            assert last(second, CHAT) == BODIES[CHAT]
            for _ in range(2):  # in turn: one of them begins on the first
                first.faults.inject("admission", path=CHAT)
                await ask(gateway)
            assert max(line.attempts for line in gateway.lines) == 2
            assert all(json.loads(one.body) == BODIES[CHAT] for one in second.received if one.path == CHAT)


@PATHS
async def test_both_legs_of_a_split_request(folder: Path, path: str) -> None:
    roles = [EngineSettings(tokenizer=str(folder), kv_role=role) for role in ("producer", "consumer")]
    async with each_simulated(*roles) as (prefill, decode):
        config = split_config(
            [prefill.url], [decode.url], parameters={}, tokenizer=str(folder), tokens=FORWARD, fleet=PATIENT_FLEET
        )
        async with running(config) as gateway:
            first = await ask(gateway, path)
            await ask(gateway, path)  # the one engine is asked for its ids behind the first, the other behind this
            third = await ask(gateway, path)
            assert first["choices"] == third["choices"]
            line = gateway.lines[-1]
            assert (line.plan, line.fallback, line.by_ids) == ("split", None, True)
            asked, fetched = last(prefill, path), last(decode, path)
            assert asked["kv_transfer_params"]["do_remote_decode"]
            assert fetched["kv_transfer_params"]["do_remote_prefill"]
            assert fetched["kv_transfer_params"]["remote_host"]
            assert as_ids(asked)
            assert as_ids(fetched)
            name = "prompt_token_ids"
            one, other = (
                (asked, fetched) if path == COMPLETION else (leg["kv_transfer_params"] for leg in (asked, fetched))
            )
            assert one.get("prompt", one.get(name)) == other.get("prompt", other.get(name))
