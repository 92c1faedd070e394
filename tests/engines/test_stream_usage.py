"""Streams tell the gateway their usage, and stock clients see what they would see without it.

The bytes of two runs of one request differ by ids and times, and by how many tokens a busy engine puts into an event:
so they are compared without the former, and asked for again until the latter agree.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest

from gateway.commands.processes import wait_for
from tests.engines.chats import WEATHER, Body, chat, system, user
from tests.engines.engine import Engine
from tests.engines.gateway import MODEL, Gateway, run_gateway
from tests.engines.prompts import passage

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
FIXED: Body = {"max_tokens": 6, "ignore_eos": True, "temperature": 0, "seed": 1}
ATTEMPTS = 20
TEXT = re.compile(rb'"(?:content|text|snapshot)":"[^"]*"')
OF_A_RUN = re.compile(rb'"(?:id|created|created_at|item_id)":(?:"[^"]*"|\d+)')

STREAMS: dict[str, tuple[str, Body]] = {
    "chat": (CHAT, chat(user("hi"), **FIXED)),
    "chat of one token": (CHAT, chat(user("hi"), **{**FIXED, "max_tokens": 1})),
    "chat with ids and probabilities": (
        CHAT,
        chat(user("hi"), return_token_ids=True, logprobs=True, top_logprobs=2, **FIXED),
    ),
    "chat with a tool": (CHAT, chat(user("hi"), tools=[WEATHER], tool_choice="none", **FIXED)),
    "chat that does not want it": (CHAT, chat(user("hi"), stream_options={"include_usage": False}, **FIXED)),
    "chat with stats of nothing": (CHAT, chat(user("hi"), stream_options={"continuous_usage_stats": True}, **FIXED)),
    "chat that wants it": (CHAT, chat(user("hi"), stream_options={"include_usage": True}, **FIXED)),
    "chat that wants it all along": (
        CHAT,
        chat(user("hi"), stream_options={"include_usage": True, "continuous_usage_stats": True}, **FIXED),
    ),
    "completion": (COMPLETION, {"prompt": "The five boxing", **FIXED}),
    "completion with an echo": (COMPLETION, {"prompt": "The five boxing", "echo": True, **FIXED}),
    "response": ("/v1/responses", {"input": "hi", "max_output_tokens": 6, "temperature": 0}),
    "messages": ("/v1/messages", {"messages": [user("hi")], "max_tokens": 6, "temperature": 0}),
}
SEVERAL: dict[str, tuple[str, Body]] = {
    "chat of two answers": (CHAT, chat(user("hi"), n=2, **{**FIXED, "temperature": 0.5})),
    "completion of two prompts": (COMPLETION, {"prompt": ["The five", "boxing wizards"], **FIXED}),
}


@pytest.fixture(scope="module")
def gateways(started_engines: list[Engine], model_folder: Path, run_folder: Path) -> Iterator[tuple[Gateway, Gateway]]:
    """Before one engine: a gateway that does not ask for usages, and one that does."""
    endpoints = [{"url": started_engines[0].url, "name": "a"}]
    with ExitStack() as stack:
        yield (
            stack.enter_context(
                run_gateway(run_folder, endpoints, {"tokenizer": str(model_folder)}, pass_through={"ask_usage": False})
            ),
            stack.enter_context(run_gateway(run_folder, endpoints, {"tokenizer": str(model_folder)})),
        )


def said(gateway: Gateway, path: str, body: Body) -> bytes:
    return OF_A_RUN.sub(b"", streamed(gateway, path, body).content)


def streamed(gateway: Gateway, path: str, body: Body) -> httpx.Response:
    return gateway.ask(path, {**body, "stream": True}).raise_for_status()


@pytest.mark.parametrize("name", STREAMS)
def test_the_bytes_are_the_same(gateways: tuple[Gateway, Gateway], name: str) -> None:
    plain, asking = gateways
    path, body = STREAMS[name]
    for _ in range(ATTEMPTS):
        theirs, ours = said(plain, path, body), said(asking, path, body)
        if ours == theirs:
            break
    assert ours == theirs
    assert ours.endswith((b"data: [DONE]\n\n", b"}\n\n"))


@pytest.mark.parametrize("name", SEVERAL)
def test_of_several_choices_too(gateways: tuple[Gateway, Gateway], name: str) -> None:
    """What comes of them is in no order: so events are compared, not their sequence."""
    asking = gateways[1]
    said(asking, CHAT, chat(user("hi"), **FIXED))  # tells the fingerprint, without which several are not asked for it
    path, body = SEVERAL[name]
    for _ in range(ATTEMPTS):
        theirs, ours = (sorted(said(gateway, path, body).split(b"\n\n")) for gateway in gateways)
        if ours == theirs:
            break
    assert ours == theirs
    assert sum(b"system_fingerprint" in event for event in ours) == 2
    line = asking.request(streamed(asking, path, body).headers["x-request-id"])
    assert (line["output_tokens"], "cached_tokens" in line) == (12, True), "it has told its usage"


def test_stock_clients_see_the_same(gateways: tuple[Gateway, Gateway]) -> None:
    for _ in range(ATTEMPTS):
        theirs, ours = (seen(gateway) for gateway in gateways)
        if ours == theirs:
            break
    assert ours == theirs


def seen(gateway: Gateway) -> list[Any]:
    """What the clients of OpenAI and of Anthropic make of a stream: its text, and all kinds of events in their order,
    without ids, times and texts. A busy engine may put several tokens into an event in each of several runs."""
    with (
        openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client,
        anthropic.Anthropic(base_url=gateway.url, api_key="none", max_retries=0) as claude,
    ):
        ours: Any = {"model": MODEL, "messages": [user("hi")], "max_tokens": 6, "extra_body": {"temperature": 0}}
        chunks = [chunk.model_dump() for chunk in client.chat.completions.create(stream=True, **ours)]
        with claude.messages.stream(**ours) as stream:
            events = [event.model_dump() for event in stream]
            text = stream.get_final_text()
    assert all(chunk["usage"] is None for chunk in chunks)
    said = "".join(choice["delta"]["content"] or "" for chunk in chunks for choice in chunk["choices"])
    return [said, kinds(chunks), text, kinds(events)]


def kinds(events: list[dict[str, Any]]) -> list[bytes]:
    each = (repr(event).replace("'", '"').replace('": ', '":').encode() for event in events)
    return list(dict.fromkeys(TEXT.sub(b"", OF_A_RUN.sub(b"", event)) for event in each))


def test_the_share_of_hits_is_the_engines_own(engines: list[Engine], model_folder: Path, run_folder: Path) -> None:
    """Over mixed traffic: streamed and not, with and without ``include_usage``, of all routes."""
    endpoints = [{"url": engine.url, "name": engine.name} for engine in engines]
    before = [counted(engine) for engine in engines]
    with run_gateway(run_folder, endpoints, {"tokenizer": str(model_folder)}) as gateway:
        for number in range(48):
            ask(gateway, number)
        reported = gateway.total("kvgate_reported_prompt_tokens_total")
        hits = gateway.total("kvgate_reported_hit_tokens_total")

        def grown() -> tuple[float, float]:
            now = [counted(engine) for engine in engines]
            return (
                sum(after[0] - first[0] for after, first in zip(now, before, strict=True)),
                sum(after[1] - first[1] for after, first in zip(now, before, strict=True)),
            )

        # An engine counts a little later than it answers.
        wait_for(lambda: grown()[0] >= reported, "the engines' counts", gateway.process)
        queried, hit = grown()
        assert hit > 0.3 * queried
        assert hits / reported == pytest.approx(hit / queried, rel=0.02)
        wait_for(
            lambda: gateway.total("kvgate_engine_cache_query_tokens_total", cache="own") >= queried,
            "the scrapes",
            gateway.process,
        )
        exported = gateway.total("kvgate_engine_cache_hit_tokens_total", cache="own")
        assert exported == pytest.approx(hit, rel=0.02)
        streamed = [line for line in gateway.requests() if line["stream"]]
        assert len(streamed) >= 30
        assert all("cached_tokens" in line for line in streamed)


def ask(gateway: Gateway, number: int) -> None:
    prefix, question = passage(f"usage {number % 4}", 80), f"question {number}"
    turn: Body = {"max_tokens": 4, "temperature": 0}
    path, body = [
        (CHAT, chat(system(prefix), user(question), **turn)),
        (COMPLETION, {"prompt": f"{prefix} {question}", **turn}),
        (CHAT, chat(system(prefix), user(question), **turn)),
        ("/v1/messages", {"system": prefix, "messages": [user(question)], "max_tokens": 4}),
        ("/v1/responses", {"instructions": prefix, "input": question, "max_output_tokens": 4}),
    ][number % 5]
    if number % 4:
        body["stream"] = True
        options = (None, {"include_usage": True}, {"include_usage": False})[number % 3]
        if options is not None and path in (CHAT, COMPLETION):
            body["stream_options"] = options
    gateway.ask(path, body).raise_for_status()


def counted(engine: Engine) -> tuple[float, float]:
    """Prompt tokens that the engine has looked for in its cache, and found there."""
    metrics = engine.metrics()
    return metrics["vllm:prefix_cache_queries_total"], metrics["vllm:prefix_cache_hits_total"]
