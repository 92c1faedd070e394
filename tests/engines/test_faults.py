"""Engines that die and come back, and a gateway that is told to stop."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import openai
import pytest

from gateway.commands.processes import wait_for
from tests.engines.chats import Body, chat, system, user
from tests.engines.engine import BLOCK_SIZE, Engine, start_all
from tests.engines.gateway import MODEL, Gateway, run_gateway
from tests.engines.prompts import passage

CHAT = "/v1/chat/completions"
SHORT: Body = {"max_tokens": 4, "temperature": 0}
WORKERS = 12  # four on each engine
REQUESTS = 96
KILL_AFTER = 24  # requests that have ended


@pytest.fixture
def gateway(engines: list[Engine], model_folder: Path, run_folder: Path) -> Iterator[Gateway]:
    """One for each test: what it has learned of an engine's death stays in it."""
    endpoints = [{"url": engine.url, "name": engine.name} for engine in engines]
    with run_gateway(run_folder, endpoints, {"tokenizer": str(model_folder)}) as gateway:
        wait_for(lambda: set(gateway.streams().values()) == {"live"}, "the event streams", gateway.process)
        yield gateway


@dataclass(slots=True)
class Sent:
    """One request of the load. ``committed``: something of an answer reached the client. ``error``: how it failed."""

    streamed: bool
    committed: bool = False
    error: Exception | None = None


async def send(client: openai.AsyncOpenAI, number: int) -> Sent:
    """One chat, every other one streamed; a failure is kept, not raised."""
    sent = Sent(streamed=number % 2 == 1)
    body = chat(
        system(passage(f"load {number % 9}", 50)),
        user(f"question {number}"),
        temperature=0,
        max_tokens=40,
        extra_body={"ignore_eos": True},
    )
    try:
        if sent.streamed:
            tokens = 0
            async for chunk in await client.chat.completions.create(model=MODEL, stream=True, **body):
                sent.committed = True
                tokens += bool(chunk.choices)
        else:
            answer = await client.chat.completions.create(model=MODEL, **body)
            assert answer.usage is not None
            assert answer.usage.completion_tokens == 40
            sent.committed = True
    except openai.OpenAIError as error:
        sent.error = error
    return sent


async def test_an_engine_killed_under_load_costs_only_what_had_begun(gateway: Gateway, engines: list[Engine]) -> None:
    victim = engines[1]
    numbers = iter(range(REQUESTS))
    done: list[Sent] = []
    under_way = asyncio.Event()

    async def work(client: openai.AsyncOpenAI) -> None:
        for number in numbers:
            sent = await send(client, number)
            done.append(sent)
            if len(done) == KILL_AFTER:
                under_way.set()

    def kill() -> None:
        wait_for(
            lambda: gateway.total("kvgate_in_flight_requests", endpoint=victim.name) >= 2,
            "requests on the engine",
            gateway.process,
        )
        victim.kill()

    async with (
        openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0, timeout=120) as client,
        asyncio.TaskGroup() as group,
    ):
        for _ in range(WORKERS):
            group.create_task(work(client))
        await under_way.wait()
        await asyncio.to_thread(kill)
        killed_after = len(done)

    assert killed_after < REQUESTS - WORKERS, "the load was over before the engine died"
    assert len(done) == REQUESTS
    lost = [sent for sent in done if sent.error is not None]
    assert [sent for sent in lost if not sent.committed] == []
    assert all(sent.streamed for sent in lost)
    assert len(lost) <= WORKERS
    wait_for(lambda: len(gateway.requests()) == REQUESTS, "the log lines of all requests", gateway.process)
    retried = [line for line in gateway.requests() if line["attempts"] > 1]
    assert len(retried) + len(lost) > 0, "the engine died with nothing on it"
    wait_for(lambda: set(gateway.unusable()) == {victim.name}, "the dead engine alone to be out", gateway.process)

    victim.start()
    await asyncio.to_thread(victim.wait_ready)
    wait_for(lambda: not gateway.unusable(), "the engine's return", gateway.process)
    wait_for(lambda: gateway.streams()[victim.name] == "live", "its event stream", gateway.process)
    await asyncio.wait_for(until_served(gateway, victim), 60)


async def until_served(gateway: Gateway, engine: Engine) -> None:
    """Send requests side by side until one is placed on the engine: it is brought back to its share by and by."""
    async with httpx.AsyncClient(base_url=gateway.url, timeout=60.0) as client:
        for turn in itertools.count():
            bodies = [chat(user(passage(f"back {turn} {n}", 40)), model=MODEL, **SHORT) for n in range(WORKERS)]
            answers = await asyncio.gather(*(client.post(CHAT, json=body) for body in bodies))
            assert {answer.status_code for answer in answers} == {200}
            if engine.name in {gateway.request(answer.headers["x-request-id"])["endpoint"] for answer in answers}:
                return


async def test_restarted_engines_hold_nothing_until_they_say_so(gateway: Gateway, engines: list[Engine]) -> None:
    """Their blocks are forgotten, and what they store from then on is known. One comes back with new ports for its
    events, one with the same paths; a third stays."""
    stays, *back = sorted(engines, key=lambda engine: engine.name == "b", reverse=True)
    assert {engine.events for engine in back} == {"tcp", "ipc"}
    bodies = [chat(system(passage(f"restart {group}", 60)), user("hi"), **SHORT) for group in range(24)]
    homes = [hit.endpoint for hit in await asyncio.gather(*(placed(gateway, body) for body in bodies))]
    assert set(homes) == {engine.name for engine in engines}

    for engine in back:
        engine.kill()
    start_all(back)
    wait_for(lambda: not gateway.unusable(), "the engines' return", gateway.process)
    wait_for(lambda: set(gateway.streams().values()) == {"live"}, "their event streams", gateway.process)

    kept = 0
    for body, home in zip(bodies, homes, strict=True):
        first = await placed(gateway, body)
        again = await placed(gateway, body)
        assert first.expected == first.reported
        assert again.expected == again.reported >= 3 * BLOCK_SIZE
        if home == stays.name:
            kept += first == Placed(home, again.expected, again.reported)  # or it was evicted by what came since
        else:
            assert first.reported < BLOCK_SIZE, "a restarted engine cannot hold this"
    assert kept > 0
    assert gateway.total("kvgate_hit_error_tokens_total") == 0


@dataclass(frozen=True, slots=True)
class Placed:
    """Where a request went, and its cached tokens by the gateway's expectation and by the engine's answer."""

    endpoint: str
    expected: int
    reported: int


async def placed(gateway: Gateway, body: Body) -> Placed:
    async with httpx.AsyncClient(base_url=gateway.url, timeout=60.0) as client:
        answer = (await client.post(CHAT, json=body | {"model": MODEL})).raise_for_status()
    line = gateway.request(answer.headers["x-request-id"])
    reported = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    return Placed(line["endpoint"], line["expected_hit"], reported)


async def test_a_stop_lets_a_running_answer_end(gateway: Gateway) -> None:
    usage = {"include_usage": True}  # events cannot be counted: a busy engine puts several tokens into one
    body = chat(user("count"), model=MODEL, stream=True, stream_options=usage, max_tokens=400, ignore_eos=True)
    async with (
        httpx.AsyncClient(timeout=60.0) as client,
        client.stream("POST", f"{gateway.url}{CHAT}", json=body) as answer,
    ):
        lines = answer.aiter_lines()
        assert (await anext(lines)).startswith("data: ")
        stopping = asyncio.create_task(asyncio.to_thread(gateway.process.terminate, 45.0))
        rest = [line async for line in lines if line]
    assert rest[-1] == "data: [DONE]"
    assert json.loads(rest[-2].removeprefix("data: "))["usage"]["completion_tokens"] == 400
    assert await stopping == 0
