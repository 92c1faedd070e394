"""Prompts that reach real engines as the gateway's token ids (``tokens.forward``) are answered as their texts are.

Each request goes to the engine itself first, twice, so that both answers which are compared find the same prefix in its
cache; they are equal in everything but ids, times, and the cuts of a stream.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.tokens import parity
from gateway.tokens.settings import ForwardSettings
from tests.engines.answers import OF_ONE_ANSWER, events
from tests.engines.chats import CHATS, COMPLETIONS, WEATHER, Body, assistant, chat, system, user
from tests.engines.engine import MAX_MODEL_LEN, SERVED_NAME, Engine
from tests.engines.prompts import passage
from tests.support.gateway import Running, config_for, running
from tests.support.wait import eventually

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"

GREEDY: Body = {"temperature": 0, "max_tokens": 12, "seed": 7}
LONG = chat(system(passage("rules", 90)), user("What is the weather in Paris?"), assistant("Sunny."), user("And now?"))

OPTIONS: dict[str, Body] = {
    "none": {},
    "seeded": {"temperature": 0.9, "seed": 11},
    "n": {"n": 3, "temperature": 0.9, "seed": 11},
    "stop": {"stop": ["e", "\n"], "max_tokens": 40},
    "stop in the output": {"stop": ["a"], "include_stop_str_in_output": True, "max_tokens": 40},
    "stop ids": {"stop_token_ids": [65, 66, 67], "max_tokens": 40},
    "penalties of the prompt": {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.2},
    "bias": {"logit_bias": {"100": 5, "101": -100}},
    "bad words": {"bad_words": ["the", "e"]},
    "least": {"min_tokens": 10},
    "special tokens": {"skip_special_tokens": False, "ignore_eos": True},
    "ids": {"return_token_ids": True},
    "salt": {"cache_salt": "tenant"},
    "json": {"response_format": {"type": "json_object"}},
    "priority": {"priority": 0, "request_id": "given"},
}
OF_CHATS: dict[str, Body] = {
    "logprobs": {"logprobs": True, "top_logprobs": 3},
    "logprobs by id": {"logprobs": True, "return_tokens_as_token_ids": True},
    "tools": {"tools": [WEATHER], "max_tokens": 40},
    "forced tool": {
        "tools": [WEATHER],
        "tool_choice": {"type": "function", "function": {"name": "get_weather"}},
        "max_tokens": 60,
    },
    "required tool": {"tools": [WEATHER], "tool_choice": "required", "max_tokens": 60},
    "no thinking": {"chat_template_kwargs": {"enable_thinking": False}},
    "both limits": {"max_completion_tokens": 5},
}
OF_COMPLETIONS: dict[str, Body] = {
    "logprobs": {"logprobs": 3},
    "logprobs by id": {"logprobs": 1, "return_tokens_as_token_ids": True},
    "no limit": {"max_tokens": None},
}
UNSTREAMED: dict[str, Body] = {"prompt logprobs": {"prompt_logprobs": 2}}

KEPT: dict[str, tuple[str, Body]] = {
    "echo": (COMPLETION, {"prompt": "The weather in Paris", "echo": True}),
    "an echoed message": (
        CHAT,
        chat(user("hi"), assistant("I th"), echo=True, continue_final_message=True, add_generation_prompt=False),
    ),
    "the rendered prompt": (CHAT, chat(user("hi"), return_prompt_text=True)),
    "truncated": (COMPLETION, {"prompt": passage("cut", 40), "truncate_prompt_tokens": 10}),
    "suffix": (COMPLETION, {"prompt": "def add(", "suffix": "return left"}),
    "beams": (COMPLETION, {"prompt": "The weather in", "use_beam_search": True, "n": 2}),
    "two prompts": (COMPLETION, {"prompt": ["The weather", "in Paris"]}),
    "ids of the client": (COMPLETION, {"prompt": [5, 6, 7, 300]}),
    "an empty prompt": (COMPLETION, {"prompt": ""}),
    "too long a chat": (CHAT, chat(user(passage("long", 3000)))),
    "too long a prompt": (COMPLETION, {"prompt": passage("long", 3000)}),
    "a template of the client": (CHAT, chat(user("hi"), chat_template="{{ messages[0].content }}")),
}


def answer_of(response: httpx.Response, *, stream: bool) -> Any:
    """What must be equal; a stream's pieces are put together."""
    if response.status_code != 200:
        return response.status_code, response.json()
    return whole(response.text) if stream else without_ids(response.json())


def without_ids(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_ids(inner) for key, inner in value.items() if key not in OF_ONE_ANSWER}
    return [without_ids(inner) for inner in value] if isinstance(value, list) else value


def whole(text: str) -> Any:
    """A stream as one object: strings and lists at the same place are joined, of anything else the last counts."""
    joined: dict[str, Any] = {}
    for _, data in events(text):
        if data == "[DONE]":
            joined["done"] = True
            continue
        data = without_ids(data)
        for choice in data.pop("choices"):
            joined[f"choice {choice['index']}"] = put(joined.get(f"choice {choice['index']}"), choice)
        joined = put(joined, data)
    return joined


PIECES = ("text", "content", "reasoning", "reasoning_content", "arguments")
"""Fields of which each event has a piece. Two equal pieces in a row are two."""


def put_at(key: str, before: Any, value: Any) -> Any:
    if key in PIECES and isinstance(before, str) and isinstance(value, str):
        return before + value
    return put(before, value)


def put(before: Any, value: Any) -> Any:
    if isinstance(before, dict) and isinstance(value, dict):
        return before | {key: put_at(key, before.get(key), inner) for key, inner in value.items()}
    if isinstance(value, list) and value and isinstance(value[0], dict) and "index" in value[0]:
        calls = dict(before or {})  # a tool's call, of which each event has a piece
        return calls | {call["index"]: put(calls.get(call["index"]), call) for call in value}
    if isinstance(before, list) and isinstance(value, list):
        return before + value
    return before if value is None else value


@pytest.fixture
async def gateway(engine: Engine, model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Running]:
    """Sends ids to the engine: it has shown that it makes the same ones."""
    monkeypatch.setattr(parity, "TRIED", 1_000_000)
    config = config_for(engine.url, tokenizer=str(model_folder), tokens=ForwardSettings(forward=True))
    async with running(config) as gateway:
        asked = await gateway.client.post(
            CHAT, json={"model": "sim", "max_tokens": 1, **chat(user("Are you like us?"))}
        )
        asked.raise_for_status()
        await eventually(lambda: bool(gateway.lines), "it is settled")
        assert not gateway.lines[0].by_ids, "an engine is asked for its own ids first"
        await eventually(lambda: not gateway.gateway.rooms.token_audit.busy, "its ids are compared", within=60)
        yield gateway


async def differences(
    gateway: Running, engine: Engine, path: str, bodies: dict[str, Body], *, by_ids: bool = True
) -> dict[str, Any]:
    """Of each body, by its name, what the engine's answer and the gateway's are where they differ; and which of them
    went the wrong way."""
    found: dict[str, Any] = {}
    async with httpx.AsyncClient(base_url=engine.url, timeout=60.0) as direct:
        for name, body in bodies.items():
            stream = bool(body.get("stream"))
            for _ in range(2):
                expected = await direct.post(path, json={"model": SERVED_NAME, **body}, headers={"Connection": "close"})
            before = len(gateway.lines)
            got = await gateway.client.post(path, json={"model": "sim", **body})
            await eventually(lambda count=before: len(gateway.lines) > count, "it is settled")
            one, other = answer_of(expected, stream=stream), answer_of(got, stream=stream)
            if one != other:
                found[name] = one, other
            elif gateway.lines[-1].by_ids is not by_ids:
                found[name] = "by ids" if gateway.lines[-1].by_ids else "as text"
    return found


def variants(base: Body, options: dict[str, Body]) -> dict[str, Body]:
    """Each option, streamed and not."""
    bodies: dict[str, Body] = {}
    for name, option in (OPTIONS | options).items():
        bodies[name] = base | GREEDY | option
        bodies[f"{name}, streamed"] = bodies[name] | {"stream": True, "stream_options": {"include_usage": True}}
    return bodies | {name: base | GREEDY | option for name, option in UNSTREAMED.items()}


async def test_chats_with_every_option(gateway: Running, engine: Engine) -> None:
    assert await differences(gateway, engine, CHAT, variants(LONG, OF_CHATS)) == {}


async def test_completions_with_every_option(gateway: Running, engine: Engine) -> None:
    prompt: Body = {"prompt": passage("completion", 120)}
    assert await differences(gateway, engine, COMPLETION, variants(prompt, OF_COMPLETIONS)) == {}


async def test_every_kind_of_chat(gateway: Running, engine: Engine) -> None:
    bodies = {name: body | GREEDY for name, body in CHATS.items()}
    found = await differences(gateway, engine, CHAT, bodies)
    as_text = sorted(name for name, what in found.items() if what == "as text")
    assert {name: what for name, what in found.items() if name not in as_text} == {}
    assert len(as_text) < len(CHATS) / 5, as_text


async def test_every_kind_of_completion(gateway: Running, engine: Engine) -> None:
    bodies = {name: body | GREEDY for name, body in COMPLETIONS.items() if not name.startswith("ids")}
    assert await differences(gateway, engine, COMPLETION, bodies) == {}


async def test_an_answer_for_which_there_is_little_room(gateway: Running, engine: Engine) -> None:
    def tokens(words: int) -> int:
        asked = engine.ask("/tokenize", {"prompt": passage("full", words)}).raise_for_status()
        return int(asked.json()["count"])

    fits, does_not = 0, MAX_MODEL_LEN
    while does_not - fits > 1:
        words = (fits + does_not) // 2
        fits, does_not = (words, does_not) if tokens(words) < MAX_MODEL_LEN - 4 else (fits, words)
    text = passage("full", fits)
    bodies: dict[str, Body] = {
        "cut short": {"prompt": text, "max_tokens": 100},
        "of all that is left": {"prompt": text, "max_tokens": None},
        "of more than there can be": {"prompt": "hi", "max_tokens": MAX_MODEL_LEN + 1},
    }
    bodies = {name: GREEDY | body for name, body in bodies.items()}
    assert await differences(gateway, engine, COMPLETION, bodies) == {}
    less = passage("full", fits - 30)
    chats = {
        "cut short": chat(user(less), max_tokens=200),
        "of more than there can be": chat(user("hi"), max_tokens=MAX_MODEL_LEN + 1),
        "of more, by the newer name": chat(user("hi"), max_completion_tokens=MAX_MODEL_LEN + 1),
    }
    assert await differences(gateway, engine, CHAT, {name: GREEDY | body for name, body in chats.items()}) == {}


async def test_what_ids_would_answer_otherwise_goes_as_it_came(gateway: Running, engine: Engine) -> None:
    for path in (CHAT, COMPLETION):
        bodies = {
            name: {"temperature": 0, "max_tokens": 8} | body for name, (where, body) in KEPT.items() if where == path
        }
        assert await differences(gateway, engine, path, bodies, by_ids=False) == {}
