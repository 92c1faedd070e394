"""The default profile keeps groups of chats on the engines that hold them, where no engine can hold them all.

Three engines with 5120 tokens of KV memory each; 30 groups of chats with a long prefix in common; 400 chats, six at a
time. Measured by the engines' own counters: prompt tokens served from the prefix cache, against those when a client
that knows the groups sends each to its own engine.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.engines.chats import Body, chat, system, user
from tests.engines.engine import SERVED_NAME, Engine
from tests.engines.gateway import MODEL, run_gateway, wait_for
from tests.engines.prompts import passage

GROUPS = 30
CHATS = 400
AT_A_TIME = 6
PREFIX_WORDS = 70  # about 11 of an engine's 160 blocks: ten groups and what runs fit, thirty groups do not
QUESTION_WORDS = 8
OUTPUT = 8
LEAST_SHARE = 0.97

ROUND_ROBIN = {
    "plugins": [{"name": "healthy", "type": "healthy"}, {"name": "turns", "type": "round-robin"}],
    "profiles": [{"name": "default", "filters": ["healthy"], "picker": "turns"}],
}


@dataclass(frozen=True, slots=True)
class Served:
    """What one run of the chats took. Tokens, by the engines' counters."""

    cached: int
    prompt: int
    errors: int

    @property
    def share(self) -> float:
        return self.cached / self.prompt


@dataclass(frozen=True, slots=True)
class Chat:
    group: int
    body: Body


def chats(run: str) -> list[Chat]:
    """The same chats in the same order for each run, but for the first word of the prefixes: no run helps another."""
    chance = random.Random(2026)
    order = [chance.randrange(GROUPS) for _ in range(CHATS)]
    return [
        Chat(
            group,
            chat(
                system(f"{run} {passage(f'group {group}', PREFIX_WORDS)}"),
                user(passage(f"question {number}", QUESTION_WORDS)),
                max_tokens=OUTPUT,
                temperature=0,
                ignore_eos=True,
            ),
        )
        for number, group in enumerate(order)
    ]


async def serve(engines: Sequence[Engine], todo: Sequence[Chat], place: Callable[[Chat], tuple[str, str]]) -> Served:
    """Send all chats, six at a time, each to the URL and model name that ``place`` gives; start with empty caches."""
    for engine in engines:
        engine.reset_cache()
    before = [engine.metrics() for engine in engines]
    waiting = iter(todo)
    errors = asked = 0

    async def work(client: httpx.AsyncClient) -> None:
        nonlocal errors, asked
        for one in waiting:
            url, model = place(one)
            try:
                answer = await client.post(f"{url}/v1/chat/completions", json={"model": model, **one.body})
            except httpx.HTTPError:
                errors += 1
            else:
                errors += answer.status_code != 200
                asked += answer.json().get("usage", {}).get("prompt_tokens", 0)

    async with httpx.AsyncClient(timeout=120.0) as client, asyncio.TaskGroup() as group:
        for _ in range(AT_A_TIME):
            group.create_task(work(client))

    def grown(name: str) -> int:
        return int(sum(engine.metrics()[name] - old[name] for engine, old in zip(engines, before, strict=True)))

    process = engines[0].process
    assert process is not None
    # An engine counts a little later than it answers.
    wait_for(lambda: grown("vllm:prefix_cache_queries_total") >= asked, "the engines' counts", process)
    return Served(grown("vllm:prefix_cache_hits_total"), grown("vllm:prefix_cache_queries_total"), errors)


async def through_a_gateway(
    engines: Sequence[Engine], model_folder: Path, folder: Path, run: str, **config: object
) -> Served:
    endpoints = [{"url": engine.url, "name": engine.name} for engine in engines]
    with run_gateway(folder, endpoints, {"tokenizer": str(model_folder)}, **config) as gateway:
        wait_for(lambda: set(gateway.streams().values()) == {"live"}, "the event streams", gateway.process)
        return await serve(engines, chats(run), lambda _: (gateway.url, MODEL))


async def test_the_default_profile_serves_what_group_by_group_serves(
    engines: list[Engine],
    model_folder: Path,
    run_folder: Path,
    record_property: Callable[[str, object], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    own = await serve(engines, chats("one"), lambda one: (engines[one.group % len(engines)].url, SERVED_NAME))
    turns = await through_a_gateway(engines, model_folder, run_folder, "two", **ROUND_ROBIN)
    default = await through_a_gateway(engines, model_folder, run_folder, "six")

    with capsys.disabled():
        print("\ncached prompt tokens, by the engines' counters:")
        for name, served in (("each group on its engine", own), ("round robin", turns), ("default profile", default)):
            record_property(f"cached tokens, {name}", served.cached)
            record_property(f"of each group's own engine, {name}", round(served.cached / own.cached, 4))
            print(
                f"  {name:26} {served.cached:7} of {served.prompt}, {served.share:.3f};"
                f" {served.cached / own.cached:.3f} of the first; {served.errors} errors"
            )

    assert (own.errors, turns.errors, default.errors) == (0, 0, 0)
    assert turns.cached < 0.7 * own.cached, "the caches are not too small for all groups: this shows nothing"
    assert default.cached >= LEAST_SHARE * own.cached
