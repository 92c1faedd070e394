"""What the gateway expects engines to serve from their caches is what they serve, summed over hundreds of chats.

Three engines with caches of 160 blocks; random chats, four at a time, that do not all fit in there. They are of groups
with a prefix in common; groups come and go, one has a salt; chats come in bursts, go on from earlier answers, and are
repeated. The gateway restarts on the way, and then an engine does. Between the two the gateway is not told where that
engine replays its history, and has to declare that it knows only a part: what is served there until the engine's
restart counts for neither side.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.commands.processes import wait_for
from tests.engines.chats import Body, assistant, chat, system, user
from tests.engines.engine import Engine
from tests.engines.gateway import MODEL, Gateway, run_gateway
from tests.engines.prompts import passage

SPREAD = {
    "plugins": [
        {"name": "healthy", "type": "healthy"},
        {"name": "cached", "type": "prefix-cache"},
        {"name": "free", "type": "active-requests"},
        {"name": "best", "type": "max-score"},
    ],
    "profiles": [
        {
            "name": "default",
            "filters": ["healthy"],
            "scorers": [{"plugin": "cached", "weight": 1}, {"plugin": "free", "weight": 1}],
            "picker": "best",
        }
    ],
}
"""Puts a new group on an engine that is free: the default profile learns which engine is faster, and four at a time may
nearly all fit on one. Where chats are placed is another test's matter; here each engine must be asked."""

SEED = 4
CHATS = 200
AT_A_TIME = 4
GATEWAY_RESTART = 70
ENGINE_DIES = 100
ENGINE_BACK = 110
"""Chats that have been answered when the gateway restarts, when an engine dies, and when its return is waited for."""

GROUPS = 10
NEW_GROUPS = 12
"""How many there are at a time, and how many come on the way, each in the oldest one's place."""
PREFIX_WORDS = (20, 190)  # some 3 to 30 of an engine's 160 blocks
QUESTION_WORDS = (4, 30)
OUTPUT = (2, 60)  # tokens, up to two blocks
SALTED = 9  # the group whose chats have a cache_salt
BURST = 0.3
"""How likely a chat is of the same group as the one before."""
GOES_ON = 0.3
REPEATS = 0.07
"""How likely a chat goes on from one of the last of its group, or is one of these once more: of which an engine may
have two copies."""
LATELY = 6

MOST_ERROR = 0.02
LEAST_HITS = 0.4
LEAST_EVICTED = 300
"""Of all prompt tokens, and blocks. With less of either this would show little; some 0.7 and 800 are usual."""


@dataclass(slots=True)
class Chat:
    """One chat of the plan. ``after``: what it goes on from. ``messages``: as sent, and then with the answer."""

    group: int
    question: str
    output: int
    stream: bool
    after: Chat | None
    messages: list[Body] = field(default_factory=list)
    answered: asyncio.Event = field(default_factory=asyncio.Event)


def plan(seed: int) -> list[Chat]:
    chance = random.Random(seed)
    chats: list[Chat] = []
    for number in range(CHATS):
        group = number * NEW_GROUPS // CHATS + chance.randrange(GROUPS)
        if chats and chance.random() < BURST:
            group = chats[-1].group
        earlier = [other for other in chats if other.group == group]
        other = chance.choice(earlier[-LATELY:]) if earlier else None
        question, after = passage(f"question {number}", chance.randint(*QUESTION_WORDS)), None
        kind = chance.random()
        if other is not None and kind < GOES_ON:
            after = other
        elif other is not None and kind < GOES_ON + REPEATS:
            question, after = other.question, other.after
        chats.append(Chat(group, question, chance.randint(*OUTPUT), chance.random() < 0.5, after))
    return chats


def prefix(group: int) -> str:
    """Of those there are at a time, the lengths go evenly from the shortest to the longest."""
    least, most = PREFIX_WORDS
    return passage(f"exact {group}", least + (most - least) * (group * 3 % GROUPS) // (GROUPS - 1))


@dataclass(frozen=True, slots=True)
class Served:
    """A chat that was answered. Prompt tokens: all, those that the gateway expected to be cached, those that were.

    ``partial``: the gateway knew only a part of what that endpoint held, and had said so.
    """

    endpoint: str
    prompt: int
    expected: int
    cached: int
    partial: bool


async def send(client: httpx.AsyncClient, one: Chat) -> tuple[str, int, int]:
    """Send a chat, once the one before it is answered; returns the id, and the engine's prompt and cached tokens."""
    if one.after is None:
        one.messages = [system(prefix(one.group)), user(one.question)]
    else:
        await one.after.answered.wait()
        one.messages = [*one.after.messages, user(one.question)]
    body = chat(*one.messages, model=MODEL, max_tokens=one.output, ignore_eos=True, temperature=0)
    if one.group == SALTED:
        body["cache_salt"] = "tenant"
    if one.stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    response = (await client.post("/v1/chat/completions", json=body)).raise_for_status()
    if one.stream:
        data = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
        assert data.pop() == "[DONE]"
        chunks = [json.loads(chunk) for chunk in data]
        text = "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])
        usage = chunks[-1]["usage"]
    else:
        answer = response.json()
        text, usage = answer["choices"][0]["message"]["content"], answer["usage"]
    one.messages.append(assistant(text))
    one.answered.set()
    return response.headers["x-request-id"], usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


async def serve(gateway: Gateway, chats: Sequence[Chat]) -> list[Served]:
    """Send the chats in their order, four at a time, and put together what the engine and the gateway's log say."""
    todo = iter(chats)
    answers: list[tuple[str, int, int]] = []

    async def work(client: httpx.AsyncClient) -> None:
        answers.extend([await send(client, one) for one in todo])

    async with httpx.AsyncClient(base_url=gateway.url, timeout=120.0) as client, asyncio.TaskGroup() as group:
        for _ in range(AT_A_TIME):
            group.create_task(work(client))

    ids = {answer[0] for answer in answers}
    wait_for(lambda: ids <= {line["request_id"] for line in gateway.requests()}, "all log lines", gateway.process)
    lines = {line["request_id"]: line for line in gateway.requests()}
    states = [line for line in gateway.lines() if line["event"] == "KV event stream"]
    served = []
    for request_id, prompt, cached in answers:
        line = lines[request_id]
        assert line["exact"]
        assert (line["prompt_tokens"], line["cached_tokens"]) == (prompt, cached)
        served.append(Served(line["endpoint"], prompt, line["expected_hit"], cached, was_partial(line, states)))
    return served


def was_partial(request: Mapping[str, Any], states: Sequence[Mapping[str, Any]]) -> bool:
    """Whether its endpoint's event stream was partial at any time from a request's arrival to its end."""
    end = datetime.fromisoformat(request["time"])
    arrived = end - timedelta(seconds=request["duration"])
    state = ""
    for line in states:
        if line["endpoint"] == request["endpoint"]:
            since = datetime.fromisoformat(line["time"])
            if since > end:
                break
            if since > arrived and state == "partial":
                return True
            state = line["state"]
    return state == "partial"


@dataclass(slots=True)
class Epoch:
    """What one process of an engine served. ``began``: its metrics before. ``hits``: by its own counter, at the end."""

    engine: Engine
    began: Mapping[str, float]
    served: list[Served] = field(default_factory=list)
    hits: int = 0

    def end(self, gateway: Gateway) -> None:
        def grown(name: str) -> int:
            return int(self.engine.metrics()[name] - self.began.get(name, 0))

        # An engine counts a little later than it answers.
        asked = sum(one.prompt for one in self.served)
        wait_for(lambda: grown("vllm:prefix_cache_queries_total") >= asked, "the engine's counts", gateway.process)
        self.hits = grown("vllm:prefix_cache_hits_total")

    @property
    def reported(self) -> int:
        return sum(one.cached for one in self.served)

    @property
    def whole(self) -> list[Served]:
        """Those served while the gateway did not say that it knew but a part."""
        return [one for one in self.served if not one.partial]

    @property
    def expected(self) -> int:
        return sum(one.expected for one in self.whole)

    @property
    def counted(self) -> int:
        """Of the hits, those of ``whole``: less what the engine reported with the others' answers."""
        return self.hits - sum(one.cached for one in self.served if one.partial)

    def __str__(self) -> str:
        off = [abs(one.expected - one.cached) for one in self.whole if one.expected != one.cached]
        return (
            f"{self.engine.name}: {len(self.served):3} chats, {len(self.whole):3} of them not while partial;"
            f" hits {self.hits:6}, of these {self.counted:6}, expected {self.expected:6}; {len(off)} off, by {sum(off)}"
        )


@dataclass(frozen=True, slots=True)
class Run:
    """``evicted``: blocks that engines removed while they served. ``at_rest``: what was served last, one at a time."""

    epochs: list[Epoch]
    evicted: int
    at_rest: list[Served]


async def run(chats: Sequence[Chat], engines: Sequence[Engine], model_folder: Path, folder: Path) -> Run:
    """Serve the chats through both restarts, and then one of each group. The first engine is the one that dies."""
    victim = engines[0]
    for engine in engines:
        engine.reset_cache()
    epochs = [Epoch(engine, engine.metrics()) for engine in engines]
    current = {epoch.engine.name: epoch for epoch in epochs}
    evicted = 0

    async def go_on(gateway: Gateway, *some: Chat) -> list[Served]:
        nonlocal evicted
        before = gateway.total("kvgate_kv_events_total", kind="removed")
        served = await serve(gateway, some)
        for one in served:
            current[one.endpoint].served.append(one)
        evicted += int(gateway.total("kvgate_kv_events_total", kind="removed") - before)
        return served

    endpoints: list[dict[str, Any]] = [{"url": engine.url, "name": engine.name} for engine in engines]
    model = {"tokenizer": str(model_folder)}
    live = {engine.name: "live" for engine in engines}
    with run_gateway(folder, endpoints, model, **SPREAD) as gateway:
        wait_for(lambda: gateway.streams() == live, "the event streams", gateway.process)
        await go_on(gateway, *chats[:GATEWAY_RESTART])

    endpoints[0]["kv_events"] = {"endpoint": victim.kv_source()["endpoint"]}
    with run_gateway(folder, endpoints, model, **SPREAD) as gateway:
        wait_for(lambda: gateway.streams() == live | {victim.name: "partial"}, "the event streams", gateway.process)
        await go_on(gateway, *chats[GATEWAY_RESTART:ENGINE_DIES])
        current[victim.name].end(gateway)
        victim.kill()
        victim.start()
        await go_on(gateway, *chats[ENGINE_DIES:ENGINE_BACK])
        await asyncio.to_thread(victim.wait_ready)
        current[victim.name] = Epoch(victim, {})
        epochs.append(current[victim.name])
        wait_for(lambda: not gateway.unusable(), "the engine's return", gateway.process)
        await go_on(gateway, *chats[ENGINE_BACK:])
        at_rest = []
        for group in range(NEW_GROUPS, NEW_GROUPS + GROUPS):
            at_rest += await go_on(gateway, Chat(group, "And now?", 1, False, None))
        for epoch in current.values():
            epoch.end(gateway)
    return Run(epochs, evicted, at_rest)


async def test_expected_hits_are_the_engines_hits_through_evictions_and_restarts(
    engines: list[Engine],
    model_folder: Path,
    run_folder: Path,
    record_property: Callable[[str, object], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    # The one that dies comes back under the same address: it is said in the second gateway's configuration.
    ordered = sorted(engines, key=lambda engine: engine.events != "ipc")
    served = await run(plan(SEED), ordered, model_folder, run_folder)
    before, *_, after = served.epochs
    expected = sum(epoch.expected for epoch in served.epochs)
    counted = sum(epoch.counted for epoch in served.epochs)
    prompt = sum(one.prompt for epoch in served.epochs for one in epoch.whole)

    record_property("expected hits", expected)
    record_property("hits by the engines' counters", counted)
    with capsys.disabled():
        print(f"\nhits in tokens, of {prompt}; {served.evicted} blocks evicted:")
        for epoch in served.epochs:
            print(f"  {epoch}")
        print(f"  expected {expected}, counted {counted}: {expected / counted - 1:+.2%}")

    assert [epoch.reported for epoch in served.epochs] == [epoch.hits for epoch in served.epochs]
    assert counted >= LEAST_HITS * prompt
    assert served.evicted >= LEAST_EVICTED
    assert before.served != before.whole, "the gateway never said that it knew but a part"
    assert after.counted > 0
    assert abs(expected - counted) <= MOST_ERROR * counted
    # Where nothing is placed before what was placed last has come true, there is nothing to be wrong about.
    assert [one.expected for one in served.at_rest] == [one.cached for one in served.at_rest]
