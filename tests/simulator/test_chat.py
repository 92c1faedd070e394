"""Chats and completions, key by key against what a real vLLM 0.32 answered to the same requests."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.simulator.conftest import Exchange, Running, Start


def events(body: bytes) -> list[Any]:
    """The payloads of a stream of ``data:`` events; ``[DONE]`` as itself."""
    blocks = body.decode().split("\n\n")
    assert blocks.pop() == "", "the last event ends with a blank line"
    assert all(block.startswith("data: ") for block in blocks)
    return [block[6:] if block == "data: [DONE]" else json.loads(block[6:]) for block in blocks]


def shape(value: Any, *, at: str = "") -> Any:
    """Keys in order and types, all the way down. Lists are as their first element, and token ids are a word."""
    if isinstance(value, dict):
        return {key: shape(part, at=key) for key, part in value.items()}
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    return type(value).__name__


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("chat1", "/v1/chat/completions"),
        ("chat1_after_reset", "/v1/chat/completions"),
        ("completion", "/v1/completions"),
    ],
)
async def test_an_answer_has_the_captured_shape(
    tiny: Running, captured: Callable[[str], Exchange], name: str, path: str
) -> None:
    real = captured(name)
    answer = await tiny.client.post(path, content=real.request, headers={"Content-Type": "application/json"})
    assert answer.status_code == real.status
    assert shape(answer.json()) == shape(real.json)
    assert list(answer.json()) == list(real.json), "in the same order"
    assert set(answer.headers) == set(real.headers)
    constant = ("content-type", "server", "vary")
    assert [answer.headers[header] for header in constant] == [real.headers[header] for header in constant]
    assert answer.json()["id"].partition("-")[0] == real.json["id"].partition("-")[0]
    assert len(answer.json()["id"]) == len(real.json["id"])
    usage, real_usage = answer.json()["usage"], real.json["usage"]
    assert usage["completion_tokens"] == real_usage["completion_tokens"]
    assert answer.json()["choices"][0]["finish_reason"] == real.json["choices"][0]["finish_reason"]


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("stream", "/v1/chat/completions"),
        ("stream_nousage", "/v1/chat/completions"),
        ("completion_stream", "/v1/completions"),
    ],
)
async def test_a_stream_has_the_captured_events(
    tiny: Running, captured: Callable[[str], Exchange], name: str, path: str
) -> None:
    real = captured(name)
    answer = await tiny.client.post(path, content=real.request)
    assert set(answer.headers) == set(real.headers)
    assert answer.headers["content-type"] == real.headers["content-type"]
    ours, theirs = events(answer.content), events(real.body)
    assert [shape(event) for event in ours] == [shape(event) for event in theirs]
    assert [list(event) for event in ours] == [list(event) for event in theirs]
    assert len({event["id"] for event in ours[:-1]}) == 1


async def test_token_ids_are_returned_where_they_are_asked_for(engine: Running) -> None:
    whole = await engine.chat("hi", max_tokens=3, return_token_ids=True)
    assert whole["usage"]["prompt_tokens"] == len(whole["prompt_token_ids"])
    assert len(whole["choices"][0]["token_ids"]) == 3
    body = {"model": "sim", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "ignore_eos": True}
    answer = await engine.client.post("/v1/chat/completions", json={**body, "stream": True, "return_token_ids": True})
    chunks = events(answer.content)[:-1]
    assert chunks[0]["prompt_token_ids"] == whole["prompt_token_ids"]
    streamed = [token for chunk in chunks[1:] for token in chunk["choices"][0]["token_ids"]]
    assert streamed == whole["choices"][0]["token_ids"]
    text = "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks)
    assert text == whole["choices"][0]["message"]["content"], "the same prompt gets the same answer"


async def test_cached_tokens_are_reported_and_counted(engine: Running) -> None:
    first = await engine.chat("a" * 100, max_tokens=1)
    second = await engine.chat("a" * 100, max_tokens=1)
    details = [answer["usage"]["prompt_tokens_details"] for answer in (first, second)]
    prompt = first["usage"]["prompt_tokens"]
    hit = (prompt - 1) // 16 * 16
    assert [detail["cached_tokens"] for detail in details] == [0, hit]
    assert await engine.metric("vllm:prefix_cache_queries_total") == 2 * prompt
    assert await engine.metric("vllm:prefix_cache_hits_total") == hit


async def test_cached_tokens_come_in_the_last_event_of_a_stream(engine: Running) -> None:
    body = {"model": "sim", "messages": [{"role": "user", "content": "b" * 80}], "max_tokens": 2, "stream": True}
    asked = {**body, "stream_options": {"include_usage": True}}
    for hit in (0, 96):  # of 99: 80 letters in a chat's frame
        usage = events((await engine.client.post("/v1/chat/completions", json=asked)).content)[-2]["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == hit
        assert "completion_tokens_details" not in usage, "streams leave out what is null"


async def test_several_prompts_and_sequences_are_choices_in_order(engine: Running) -> None:
    body = {"model": "sim", "prompt": ["one", "two"], "n": 2, "max_tokens": 4, "ignore_eos": True, "echo": True}
    answer = (await engine.client.post("/v1/completions", json=body)).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert [choice["text"][:3] for choice in answer["choices"]] == ["one", "one", "two", "two"]
    assert len({choice["text"] for choice in answer["choices"]}) == 4
    assert answer["usage"] | {"prompt_tokens_details": None} == {
        "prompt_tokens": 6,
        "total_tokens": 22,
        "completion_tokens": 16,
        "prompt_tokens_details": None,
        "completion_tokens_details": None,
    }


@pytest.mark.parametrize("prompt", [[104, 105], [[104, 105]], "hi", ["hi"]])
async def test_a_prompt_may_come_as_text_or_as_ids(engine: Running, prompt: Any) -> None:
    body = {"model": "sim", "prompt": prompt, "max_tokens": 2, "return_token_ids": True}
    answer = (await engine.client.post("/v1/completions", json=body)).json()
    assert answer["choices"][0]["prompt_token_ids"] == [104, 105]


async def test_streams_of_several_choices_are_interleaved(engine: Running) -> None:
    body = {"model": "sim", "prompt": ["one", "two"], "max_tokens": 3, "ignore_eos": True, "stream": True}
    chunks = events((await engine.client.post("/v1/completions", json=body)).content)[:-1]
    order = [chunk["choices"][0]["index"] for chunk in chunks]
    assert order == [0, 1, 0, 1, 0, 1]
    assert [("system_fingerprint" in chunk) for chunk in chunks] == [False] * 4 + [True] * 2


async def test_a_stop_string_ends_the_answer_before_it(engine: Running) -> None:
    whole = (await engine.chat(max_tokens=40))["choices"][0]["message"]["content"]
    stop = whole[10:13]
    cut = (await engine.chat(max_tokens=40, stop=[stop, "never"]))["choices"][0]
    assert (cut["finish_reason"], cut["stop_reason"]) == ("stop", stop)
    assert cut["message"]["content"] == whole[: whole.index(stop)]
    assert (engine.server.running, engine.server.aborted) == (0, 0)


async def test_an_answer_without_a_limit_ends_with_its_end_of_text(start: Start) -> None:
    running = await start(answer_tokens=5)
    answer = await running.chat(ignore_eos=False, return_token_ids=True)
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert len(answer["choices"][0]["token_ids"]) == 5
    assert len(answer["choices"][0]["message"]["content"]) == 4


async def test_a_real_tokenizer_is_used(start: Start, tokenizer: str) -> None:
    running = await start(tokenizer=tokenizer)
    answer = await running.chat("What is the weather like today?", max_tokens=6, return_token_ids=True)
    assert answer["usage"]["prompt_tokens"] < 25
    text = answer["choices"][0]["message"]["content"]
    assert text.startswith(" ")
    assert len(text.split()) == 6


@pytest.mark.parametrize("text", ["x" * 3000, "x" * 30000])
async def test_long_and_short_prompts_are_encoded_alike(start: Start, tokenizer: str, text: str) -> None:
    running = await start(tokenizer=tokenizer)
    body = {"model": "sim", "prompt": text, "max_tokens": 1, "return_token_ids": True}
    answer = (await running.client.post("/v1/completions", json=body)).json()
    ids = answer["choices"][0]["prompt_token_ids"]
    assert running.server.service.words.decode(ids) == text
