"""A stream whose KV cannot be loaded: what each route says before the error, and how it then ends."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.simulator.conftest import Running

INTERNAL = {"message": "Internal server error", "type": "InternalServerError", "param": None, "code": 500}
ASKED: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4},
}


async def failing(running: Running, path: str, **more: Any) -> tuple[list[tuple[str, Any]], bool]:
    """The events of a stream that fetches its KV in vain, by name and data, and whether it came to an end."""
    params = {"kv_transfer_params": {"do_remote_decode": True}}
    prefill = await running.client.post(path, json={**ASKED[path], **params})
    running.server.faults.inject("kv-fail", times=1)
    body = {**ASKED[path], **more, "stream": True, "kv_transfer_params": prefill.json()["kv_transfer_params"]}
    text, ended = b"", True
    async with running.client.stream("POST", path, json=body) as answer:
        assert answer.status_code == 200
        try:
            async for part in answer.aiter_bytes():
                text += part
        except httpx.RemoteProtocolError:
            ended = False
    found = []
    for event in text.decode().removesuffix("\n\n").split("\n\n"):
        name, _, data = event.rpartition("data: ")
        found.append((name.removeprefix("event: ").strip(), data if data == "[DONE]" else json.loads(data)))
    return found, ended


async def test_completions_begin_with_the_error(engine: Running) -> None:
    assert await failing(engine, "/v1/completions") == ([("", {"error": INTERNAL}), ("", "[DONE]")], True)


@pytest.mark.parametrize("choices", [1, 2])
async def test_a_chat_says_its_roles_first(engine: Running, choices: int) -> None:
    events, ended = await failing(engine, "/v1/chat/completions", n=choices)
    *roles, error, done = [data for _, data in events]
    assert [role["choices"][0]["delta"] for role in roles] == [{"role": "assistant", "content": ""}] * choices
    assert (error, done, ended) == ({"error": INTERNAL}, "[DONE]", True)


async def test_a_message_starts_and_has_no_stop(engine: Running) -> None:
    events, ended = await failing(engine, "/v1/messages")
    assert [name for name, _ in events] == ["message_start", "error"]
    error = events[-1][1]
    assert (error["type"], error["error"]["type"], ended) == ("error", "internal_error", True)


async def test_a_response_is_announced_and_cut(engine: Running) -> None:
    events, ended = await failing(engine, "/v1/responses")
    assert ([name for name, _ in events], ended) == (["response.created", "response.in_progress"], False)
    assert (await engine.client.get("/health")).status_code == 200
    assert engine.server.running == 0
