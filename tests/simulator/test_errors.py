"""What is refused, in the words of a real engine."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.simulator.conftest import DATA, Exchange, Running, Start

USER = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    "name",
    [
        "err400_badjson",
        "err400_maxtok0",
        "err400_maxtok_toolarge",
        "err400_nomessages",
        "err400_temp",
        "err404_model",
    ],
)
async def test_an_error_is_the_captured_one(tiny: Running, captured: Callable[[str], Exchange], name: str) -> None:
    real = captured(name)
    answer = await tiny.client.post("/v1/chat/completions", content=real.request)
    assert answer.status_code == real.status
    assert set(answer.headers) == set(real.headers)
    assert answer.json() == real.json


@pytest.mark.parametrize("name", ["err400_maxtok0", "err404_model"])
async def test_an_error_before_the_first_token_is_no_stream(
    tiny: Running, captured: Callable[[str], Exchange], name: str
) -> None:
    real = captured(name)
    body = {**json.loads(real.request or b""), "stream": True}
    answer = await tiny.client.post("/v1/chat/completions", json=body)
    assert (answer.status_code, answer.headers["content-type"]) == (real.status, "application/json")
    assert answer.json() == real.json


async def test_too_many_characters_are_refused_before_they_are_tokenized(
    tiny: Running, captured: Callable[[str], Exchange]
) -> None:
    real = json.loads((DATA / "err400_toolong.body").read_text())
    answer = await tiny.client.post("/v1/completions", json={"model": "tiny", "prompt": "x" * 67550})
    assert answer.json() == real


async def test_too_many_tokens_name_the_limit(engine: Running) -> None:
    answer = await engine.client.post("/v1/completions", json={"model": "sim", "prompt": [7] * 32769})
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["param"]) == (400, "BadRequestError", "input_tokens")
    assert "32768 tokens" in error["message"]


async def test_an_answer_is_cut_to_the_room_that_its_prompt_leaves(start: Start) -> None:
    small = await start(num_blocks=5)
    body = {"model": "sim", "prompt": [7] * 40, "max_tokens": 30, "ignore_eos": True}
    answer = (await small.client.post("/v1/completions", json=body)).json()
    assert answer["usage"]["completion_tokens"] == 64 - 40
    assert answer["choices"][0]["finish_reason"] == "length"
    full = await small.client.post("/v1/completions", json=body | {"prompt": [7] * 64})
    assert (full.status_code, full.json()["error"]["param"]) == (400, "max_tokens")
    beyond = await small.client.post("/v1/completions", json=body | {"prompt": [7] * 65})
    assert (beyond.status_code, beyond.json()["error"]["param"]) == (400, "input_tokens")


@pytest.mark.parametrize("name", ["err404_path", "err405"])
async def test_unknown_routes_answer_as_the_framework_does(
    tiny: Running, captured: Callable[[str], Exchange], name: str
) -> None:
    real = captured(name)
    path = "/v1/chat/completions" if name == "err405" else "/v1/nope"
    answer = await tiny.client.get(path)
    assert (answer.status_code, answer.content) == (real.status, real.body)
    assert set(answer.headers) == set(real.headers)
    assert answer.headers.get("allow") == real.headers.get("allow")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ([1], "body"),
        ({"model": 3, "messages": USER}, "body.model"),
        ({"messages": "hi"}, "body.messages"),
        ({"messages": [{"content": "hi"}]}, "body.messages.0.role"),
        ({"messages": []}, None),
        ({"messages": USER, "max_tokens": "4"}, "body.max_tokens"),
        ({"messages": USER, "cache_salt": ""}, "cache_salt"),
        ({"messages": USER, "kv_transfer_params": "x"}, "body.kv_transfer_params"),
        ({"messages": USER, "kv_transfer_params": {"prompt_token_ids": []}}, "kv_transfer_params.prompt_token_ids"),
        ({"messages": USER, "kv_transfer_params": {"prompt_token_ids": [999]}}, "kv_transfer_params.prompt_token_ids"),
        ({"messages": [*USER, {"role": "assistant"}], "continue_final_message": True}, None),
    ],
)
async def test_a_bad_field_is_named(engine: Running, body: Any, param: str | None) -> None:
    answer = await engine.client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
    assert answer.json()["error"]["code"] == 400


@pytest.mark.parametrize("raw", [b"\xff\xfe{", b"[" * 100_000, b"{" * 50_000, b""])
async def test_bytes_that_are_no_json_are_a_400(engine: Running, raw: bytes) -> None:
    answer = await engine.client.post("/v1/chat/completions", content=raw)
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "Bad Request"


@pytest.mark.parametrize("prompt", [None, [], [[]], 5, [1.5], ["a", 1]])
async def test_a_prompt_must_be_text_or_token_ids(engine: Running, prompt: Any) -> None:
    answer = await engine.client.post("/v1/completions", json={"model": "sim", "prompt": prompt})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] in ("prompt", "body.prompt")
