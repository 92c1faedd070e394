"""KV parameters: the legs of a split request, and the bodies that kill a decode engine."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.simulator.conftest import DATA, Running, Start

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "a" * 90}], "max_tokens": 1, "ignore_eos": True}
PREFILL = {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None}


async def test_a_prefill_leg_answers_with_the_captured_fields(engine: Running) -> None:
    answer = await engine.client.post(CHAT, json={**BODY, "kv_transfer_params": PREFILL}, headers={"X-Request-Id": "x"})
    ours = answer.json()["kv_transfer_params"]
    real = json.loads((DATA / "prefill_leg.body").read_text())["kv_transfer_params"]
    assert list(ours) == list(real)
    assert {key: type(value) for key, value in ours.items()} == {key: type(value) for key, value in real.items()}
    assert ours["remote_num_tokens"] == answer.json()["usage"]["prompt_tokens"]
    assert ours["remote_request_id"].startswith("chatcmpl-x-")
    assert len(ours["remote_block_ids"][0]) == -(-ours["remote_num_tokens"] // 16)


async def test_a_decode_leg_takes_the_prompt_as_computed(start: Start) -> None:
    prefill, decode = await start(), await start()
    await prefill.chat(**BODY)
    first = await prefill.client.post(CHAT, json={**BODY, "kv_transfer_params": PREFILL})
    params = first.json()["kv_transfer_params"]
    assert params["remote_prefill_cached_tokens"] == 96
    answer = (await decode.client.post(CHAT, json={**BODY, "max_tokens": 4, "kv_transfer_params": params})).json()
    assert answer["kv_transfer_params"] is None
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 96, "what the prefill engine had found"
    plain = await prefill.chat("a" * 90, max_tokens=4)
    assert answer["choices"] == plain["choices"]
    prompt = answer["usage"]["prompt_tokens"]
    assert await decode.metric("vllm:prompt_tokens_by_source_total", source="external_kv_transfer") == prompt
    assert await decode.metric("vllm:prompt_tokens_by_source_total", source="local_compute") == 0


async def test_a_streamed_prefill_leg_carries_nothing(engine: Running) -> None:
    answer = await engine.client.post(CHAT, json={**BODY, "stream": True, "kv_transfer_params": PREFILL})
    assert "kv_transfer_params" not in answer.text


@pytest.mark.parametrize(
    "deadly",
    [
        {"kv_transfer_params": {"do_remote_prefill": True, "do_remote_decode": False}},
        {"kv_transfer_params": {"do_remote_prefill": True, "remote_host": "x"}, "model": "nope"},
        {"vllm_xargs": {"kv_transfer_params": {"do_remote_prefill": True}}},
        {"vllm_xargs": {"kv_transfer_params": "x"}},
    ],
)
@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/messages", "/v1/responses"])
async def test_incomplete_parameters_kill_the_engine(engine: Running, path: str, deadly: dict[str, Any]) -> None:
    with pytest.raises(httpx.RemoteProtocolError):
        await engine.client.post(path, json={**BODY, "prompt": "x", "input": "x", **deadly})
    assert engine.server.died.is_set()
    with pytest.raises(httpx.ConnectError):
        await engine.client.get("/health")


async def test_an_engine_without_the_connector_ignores_them(start: Start) -> None:
    running = await start(connector="none")
    for params in ({"do_remote_prefill": True}, PREFILL):
        answer = await running.client.post(CHAT, json={**BODY, "kv_transfer_params": params})
        assert (answer.status_code, answer.json()["kv_transfer_params"]) == (200, None)


async def test_a_gateways_own_token_ids_replace_the_rendering(engine: Running) -> None:
    asked = {**BODY, "return_token_ids": True, "kv_transfer_params": {"prompt_token_ids": [1, 2, 3]}}
    answer = (await engine.client.post(CHAT, json=asked)).json()
    assert answer["prompt_token_ids"] == [1, 2, 3]
    image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
    answer = (await engine.client.post(CHAT, json={**asked, "messages": [image]})).json()
    assert answer["prompt_token_ids"] != [1, 2, 3], "not for anything but text"
