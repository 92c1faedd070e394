"""The simulator answers as vLLM does: the same requests to both, and shapes, headers, events and errors compared.

Where they differ the simulator is wrong. Text is not compared (one is random weights, the other a corpus), but ids,
counts, names, types and the order of things are.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from simulator.server import EngineServer
from simulator.settings import EngineSettings
from tests.engines.answers import outline, series, shape
from tests.engines.chats import CHATS, COMPLETIONS, WEATHER, Body, chat, system, user
from tests.engines.engine import BLOCK_SIZE, KV_BYTES, MAX_MODEL_LEN, SERVED_NAME, TOKEN_BYTES, Engine
from tests.engines.prompts import passage

CHAT, COMPLETION, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"
FIXED: Body = {"max_tokens": 6, "ignore_eos": True, "temperature": 0}
STREAM_ATTEMPTS = 20
OF_THE_SERVER = {"date", "server", "content-length", "transfer-encoding", "connection", "keep-alive"}
"""Headers that say which HTTP server it is and how it frames an answer."""

CONFIGURATION = "vllm:cache_config_info"
"""Its labels are vLLM's options: the simulator has some of them."""
NOT_SIMULATED = ("vllm:estimated_", "vllm:tool_call_parser_")
"""Of the hardware, and of what an answer's text is parsed into: no gateway reads them."""


@pytest.fixture
async def simulator(model_folder: Path) -> AsyncIterator[EngineServer]:
    """An engine of the same sizes, with the same tokenizer."""
    settings = EngineSettings(
        served_name=SERVED_NAME,
        block_size=BLOCK_SIZE,
        num_blocks=KV_BYTES // TOKEN_BYTES // BLOCK_SIZE,
        max_model_len=MAX_MODEL_LEN,
        tokenizer=str(model_folder),
        connector="none",
    )
    server = EngineServer(settings)
    await server.start()
    yield server
    await server.close()


class Pair:
    """A client of each."""

    def __init__(self, real: httpx.AsyncClient, simulated: httpx.AsyncClient) -> None:
        self.real = real
        self.simulated = simulated

    async def send(self, method: str, path: str, body: Body | bytes | None) -> tuple[httpx.Response, httpx.Response]:
        """The same request to both: the answers of vLLM and of the simulator."""
        if isinstance(body, dict):
            body = json.dumps({"model": SERVED_NAME, **body}).encode()
        headers = {"content-type": "application/json"} if body is not None else {}
        real = await self.real.request(method, path, content=body, headers=headers)
        return real, await self.simulated.request(method, path, content=body, headers=headers)


@pytest.fixture
async def pair(engine: Engine, simulator: EngineServer) -> AsyncIterator[Pair]:
    async with (
        # Without certificates: reading them takes longer than most of these tests.
        httpx.AsyncClient(base_url=engine.url, timeout=60.0, verify=False) as real,
        httpx.AsyncClient(base_url=simulator.url, timeout=60.0, verify=False) as simulated,
    ):
        yield Pair(real, simulated)


def head(answer: httpx.Response) -> tuple[int, str | None, set[str]]:
    return answer.status_code, answer.headers.get("content-type"), set(answer.headers) - OF_THE_SERVER


ANSWERS: dict[str, tuple[str, str, Body | None]] = {
    "chat": ("POST", CHAT, chat(system("s"), user("hi"), **FIXED)),
    "chat with tools": ("POST", CHAT, chat(user("hi"), tools=[WEATHER], **FIXED)),
    "chat, two choices": ("POST", CHAT, chat(user("hi"), n=2, max_tokens=6, ignore_eos=True)),
    "chat with ids": ("POST", CHAT, chat(user("hi"), return_token_ids=True, **FIXED)),
    "chat, stopped by itself": ("POST", CHAT, chat(user("hi"), max_completion_tokens=3)),
    "chat with a salt": ("POST", CHAT, chat(user("hi"), cache_salt="a", **FIXED)),
    "completion": ("POST", COMPLETION, {"prompt": "The weather", **FIXED}),
    "completion with ids": ("POST", COMPLETION, {"prompt": [5, 6, 7], "return_token_ids": True, **FIXED}),
    "two completions": ("POST", COMPLETION, {"prompt": ["one", "two"], **FIXED}),
    "completion that fills the model": ("POST", COMPLETION, {"prompt": [5] * 4090, **FIXED, "max_tokens": 20}),
    "completion without max_tokens": ("POST", COMPLETION, {"prompt": "hi", "ignore_eos": True}),
    "messages": ("POST", MESSAGES, {"messages": [user("hi")], "system": "s", "max_tokens": 6}),
    "responses": ("POST", RESPONSES, {"input": "hi", "max_output_tokens": 6}),
    "tokenize": ("POST", "/tokenize", {"prompt": "The weather"}),
    "tokenize a chat": ("POST", "/tokenize", chat(user("hi"))),
    "tokenize with strings": ("POST", "/tokenize", {"prompt": "hi", "return_token_strs": True}),
    "detokenize": ("POST", "/detokenize", {"tokens": [5, 6]}),
    "models": ("GET", "/v1/models", None),
    "health": ("GET", "/health", None),
    "ping": ("GET", "/ping", None),
    "version": ("GET", "/version", None),
    "load": ("GET", "/load", None),
    "kv event sources": ("GET", "/kv_event_sources", None),
    "reset": ("POST", "/reset_prefix_cache", None),
}


@pytest.mark.parametrize("name", ANSWERS)
async def test_answers(pair: Pair, name: str) -> None:
    real, simulated = await pair.send(*ANSWERS[name])
    assert real.status_code == 200
    assert head(simulated) == head(real)
    if real.content:
        theirs, ours = real.json(), simulated.json()
        assert shape(ours) == shape(theirs)
        if "choices" in theirs:
            assert counts(ours["usage"]) == counts(theirs["usage"])
            assert [c["finish_reason"] for c in ours["choices"]] == [c["finish_reason"] for c in theirs["choices"]]


def counts(usage: Body) -> Body:
    return {name: value for name, value in usage.items() if isinstance(value, int)}


STREAMS: dict[str, tuple[str, Body]] = {
    "chat": (CHAT, chat(user("hi"), **FIXED)),
    "chat with usage": (CHAT, chat(user("hi"), stream_options={"include_usage": True}, **FIXED)),
    "chat with usage all along": (
        CHAT,
        chat(user("hi"), stream_options={"include_usage": True, "continuous_usage_stats": True}, **FIXED),
    ),
    "chat with ids": (CHAT, chat(user("hi"), return_token_ids=True, **FIXED)),
    "chat of one token": (CHAT, chat(user("hi"), **{**FIXED, "max_tokens": 1})),
    "completion": (COMPLETION, {"prompt": "hi", **FIXED}),
    "completion with usage": (COMPLETION, {"prompt": "hi", "stream_options": {"include_usage": True}, **FIXED}),
    "completion with ids": (COMPLETION, {"prompt": [5, 6], "return_token_ids": True, **FIXED}),
    "messages": (MESSAGES, {"messages": [user("hi")], "max_tokens": 6}),
    "responses": (RESPONSES, {"input": "hi", "max_output_tokens": 6}),
}


@pytest.mark.parametrize("name", STREAMS)
async def test_streams(pair: Pair, name: str) -> None:
    """Events of the same shapes in the same order.

    How many deltas vLLM cuts a text into is a matter of time, and one that was held up tells first and last things in
    one event: so it is asked again until it was not.
    """
    path, body = STREAMS[name]
    for _ in range(STREAM_ATTEMPTS):
        real, simulated = await pair.send("POST", path, {**body, "stream": True})
        assert real.status_code == 200
        assert head(simulated) == head(real)
        if outline(simulated.text) == outline(real.text):
            break
    assert outline(simulated.text) == outline(real.text)


ERRORS: dict[str, tuple[str, str, Body | bytes | None]] = {
    "unknown model": ("POST", CHAT, chat(user("hi"), model="nope")),
    "unknown path": ("GET", "/v1/nope", None),
    "wrong method": ("GET", CHAT, None),
    "not JSON": ("POST", CHAT, b'{"model": "tiny", "messages": ['),
    "not an object": ("POST", CHAT, b"[1, 2]"),
    "no messages": ("POST", CHAT, {}),
    "empty messages": ("POST", CHAT, chat()),
    "messages are a string": ("POST", CHAT, {"messages": "hi"}),
    "no prompt": ("POST", COMPLETION, {}),
    "temperature": ("POST", CHAT, chat(user("hi"), temperature=-3)),
    "max_tokens of nothing": ("POST", CHAT, chat(user("hi"), max_tokens=0)),
    "max_tokens beyond the model": ("POST", CHAT, chat(user("hi"), max_tokens=100_000)),
    "max_tokens as text": ("POST", CHAT, chat(user("hi"), max_tokens="many")),
    "too long": ("POST", COMPLETION, {"prompt": [5] * (MAX_MODEL_LEN + 1)}),
    "too long by far": ("POST", CHAT, chat(user("x" * 100_000))),
    "too long, streamed": ("POST", CHAT, chat(user("word " * 5000), stream=True)),
    "id out of the vocabulary": ("POST", COMPLETION, {"prompt": [5, 100_000]}),
    "an empty salt": ("POST", CHAT, chat(user("hi"), cache_salt="")),
    "prompt and continuation": (
        "POST",
        CHAT,
        chat(user("hi"), add_generation_prompt=True, continue_final_message=True),
    ),
}


@pytest.mark.parametrize("name", ERRORS)
async def test_errors(pair: Pair, name: str) -> None:
    """Status, headers and body; of a validation's message only that there is one (it is pydantic's own text)."""
    real, simulated = await pair.send(*ERRORS[name])
    assert 400 <= real.status_code < 500
    assert head(simulated) == head(real)
    ours, theirs = simulated.json(), real.json()
    assert shape(ours) == shape(theirs)
    if "error" in theirs:
        assert {k: v for k, v in ours["error"].items() if k != "message"} == {
            k: v for k, v in theirs["error"].items() if k != "message"
        }


@pytest.mark.parametrize("name", CHATS)
async def test_rendered_chats(pair: Pair, name: str) -> None:
    real, simulated = await pair.send("POST", CHAT, {**CHATS[name], "return_token_ids": True, "max_tokens": 1})
    assert simulated.json()["prompt_token_ids"] == real.json()["prompt_token_ids"]


@pytest.mark.parametrize("name", COMPLETIONS)
async def test_encoded_completions(pair: Pair, name: str) -> None:
    body = {**COMPLETIONS[name], "return_token_ids": True, "max_tokens": 1}
    real, simulated = await pair.send("POST", COMPLETION, body)
    assert simulated.json()["choices"][0]["prompt_token_ids"] == real.json()["choices"][0]["prompt_token_ids"]


async def test_cached_tokens(pair: Pair) -> None:
    """The prefix cache counts alike, request by request."""
    prefix = passage("shapes", 60)
    for body in (
        chat(system(prefix), user("one"), **FIXED),
        chat(system(prefix), user("one"), **FIXED),
        chat(system(prefix), user("two"), **FIXED),
        chat(system(prefix), user("two"), cache_salt="tenant", **FIXED),
        chat(system(prefix[:-20]), user("two"), **FIXED),
    ):
        real, simulated = await pair.send("POST", CHAT, body)
        assert simulated.json()["usage"] == real.json()["usage"]


async def test_cached_tokens_of_messages(pair: Pair) -> None:
    """Anthropic's ``input_tokens`` leave out what was found in the cache and what was put into it."""
    body = {"messages": [user(passage("shapes of messages", 60))], "max_tokens": 3}
    for found in (False, True):
        real, simulated = await pair.send("POST", MESSAGES, body)
        assert simulated.json()["usage"] == real.json()["usage"]
        assert bool(real.json()["usage"]["cache_read_input_tokens"]) is found


async def test_metrics(pair: Pair, engine: Engine) -> None:
    """Every series of the simulator exists in vLLM with the same labels, and no series of work lacks."""
    await pair.send("POST", CHAT, chat(user("hi"), **FIXED))
    real, simulated = await pair.send("GET", "/metrics", None)
    assert head(simulated) == head(real)
    theirs, ours = series(real.text), series(simulated.text)
    (options,) = ours.pop(CONFIGURATION)
    assert set(options) <= set(theirs.pop(CONFIGURATION)[0])
    assert {name: labels for name, labels in ours.items() if theirs.get(name) != labels} == {}
    assert {n for n in theirs if n.startswith("vllm:") and not n.startswith(NOT_SIMULATED)} - set(ours) == set()
    assert "process_start_time_seconds" in ours
