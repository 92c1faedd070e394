"""Conversations of groups, six at a time, on three engines: placed by a caller or through a gateway, and what it took.

Measured by the engines' own counters: prompt tokens served from the prefix cache, and work, which is prompt tokens that
had to be computed and tokens that were generated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import httpx

from gateway.commands.processes import wait_for
from tests.engines.chats import Body, assistant, chat, system, user
from tests.engines.engine import Engine
from tests.engines.gateway import MODEL, run_gateway
from tests.engines.prompts import passage

AT_A_TIME = 6
QUESTION_WORDS = 8
OUTPUT = 8


@dataclass(frozen=True, slots=True)
class Served:
    """What one run took. Tokens, by the engines' counters. ``work``: of each engine. ``expected``: of ``cached``, what
    the gateway expected, if there was one."""

    cached: int
    prompt: int
    work: tuple[int, ...]
    errors: int
    expected: int = 0

    @property
    def share(self) -> float:
        return self.cached / self.prompt

    @property
    def busiest(self) -> float:
        """The busiest engine's work, by the mean engine's."""
        return max(self.work) * len(self.work) / sum(self.work)

    @property
    def least_busy(self) -> float:
        """The least busy engine's work, by the mean engine's."""
        return min(self.work) * len(self.work) / sum(self.work)


@dataclass(frozen=True, slots=True)
class Conversation:
    """Its ``questions`` are asked one after another, each with all that was said before, behind the group's prefix."""

    group: int
    session: str
    prefix: str
    questions: tuple[str, ...]


def conversation(start: str, group: int, number: int, turns: int, prefix_words: int) -> Conversation:
    return Conversation(
        group,
        f"{start} {number}",
        f"{start} {passage(f'group {group}', prefix_words)}",
        tuple(passage(f"question {number} {turn}", QUESTION_WORDS) for turn in range(turns)),
    )


def turns(one: Conversation, answers: Sequence[str]) -> Body:
    """The chat that asks the next question after ``answers``."""
    said = [user(one.questions[0])]
    for answer, question in zip(answers, one.questions[1:], strict=False):
        said += [assistant(answer), user(question)]
    return chat(system(one.prefix), *said, max_tokens=OUTPUT, temperature=0, ignore_eos=True)


async def serve(
    engines: Sequence[Engine], todo: Sequence[Conversation], place: Callable[[Conversation], tuple[str, str]]
) -> Served:
    """Send all, six at a time, each to the URL and model name that ``place`` gives; start with empty caches."""
    for engine in engines:
        engine.reset_cache()
    before = [engine.metrics() for engine in engines]
    waiting = iter(todo)
    errors = asked = generated = 0

    async def converse(client: httpx.AsyncClient, one: Conversation) -> None:
        nonlocal asked, generated
        url, model = place(one)
        answers: list[str] = []
        for _ in one.questions:
            body = {"model": model, **turns(one, answers)}
            answer = await client.post(f"{url}/v1/chat/completions", json=body, headers={"x-session-id": one.session})
            told = answer.raise_for_status().json()
            asked += told["usage"]["prompt_tokens"]
            generated += told["usage"]["completion_tokens"]
            answers.append(told["choices"][0]["message"]["content"])

    async def work(client: httpx.AsyncClient) -> None:
        nonlocal errors
        for one in waiting:
            try:
                await converse(client, one)
            except httpx.HTTPError:
                errors += 1

    async with httpx.AsyncClient(timeout=120.0) as client, asyncio.TaskGroup() as group:
        for _ in range(AT_A_TIME):
            group.create_task(work(client))

    def grown(name: str) -> list[int]:
        return [int(engine.metrics()[name] - old[name]) for engine, old in zip(engines, before, strict=True)]

    process = engines[0].process
    assert process is not None
    # An engine counts a little later than it answers.
    for name, least in (("vllm:prefix_cache_queries_total", asked), ("vllm:generation_tokens_total", generated)):
        wait_for(lambda name=name, least=least: sum(grown(name)) >= least, "the engines' counts", process)
    hits, prompts = grown("vllm:prefix_cache_hits_total"), grown("vllm:prefix_cache_queries_total")
    made = grown("vllm:generation_tokens_total")
    worked = tuple(prompt - hit + new for prompt, hit, new in zip(prompts, hits, made, strict=True))
    return Served(sum(hits), sum(prompts), worked, errors)


async def through_a_gateway(
    engines: Sequence[Engine],
    model_folder: Path,
    folder: Path,
    todo: Sequence[Conversation],
    config: Body | None = None,
) -> Served:
    endpoints = [{"url": engine.url, "name": engine.name} for engine in engines]
    with run_gateway(folder, endpoints, {"tokenizer": str(model_folder)}, **(config or {})) as gateway:
        wait_for(lambda: set(gateway.streams().values()) == {"live"}, "the event streams", gateway.process)
        served = await serve(engines, todo, lambda _: (gateway.url, MODEL))
        asked = sum(len(one.questions) for one in todo)
        wait_for(lambda: len(gateway.requests()) + served.errors >= asked, "all requests' lines", gateway.process)
        return replace(served, expected=sum(line["expected_hit"] for line in gateway.requests()))


def table(results: Mapping[str, Served]) -> Iterator[str]:
    """One line for each."""
    yield f"  {'':26} {'cached':>8} {'of':>8} {'share':>7} {'expected':>8} {'busiest':>8}  work of each engine"
    for name, it in results.items():
        work = " ".join(f"{each:7}" for each in it.work)
        yield f"  {name:26} {it.cached:8} {it.prompt:8} {it.share:7.3f} {it.expected:8} {it.busiest:8.3f}  {work}"
