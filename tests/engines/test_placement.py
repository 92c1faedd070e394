"""The default profile keeps groups of chats on the engines that hold them, where no engine can hold them all.

Three engines with 5120 tokens of KV memory each. Chats of many groups, each with a long prefix in common, six at a
time. Measured by the engines' own counters: prompt tokens served from the prefix cache, and work, which is prompt
tokens that had to be computed and tokens that were generated.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.engines.chats import Body, assistant, chat, system, user
from tests.engines.engine import KV_BYTES, SERVED_NAME, TOKEN_BYTES, Engine
from tests.engines.gateway import MODEL, run_gateway, wait_for
from tests.engines.prompts import passage

AT_A_TIME = 6
PREFIX_WORDS = 70  # about 11 of an engine's 160 blocks
QUESTION_WORDS = 8
OUTPUT = 8

GROUPS = 30  # ten groups and what runs fit into one engine, thirty do not
CHATS = 400
LEAST_SHARE = 0.97

MANY_GROUPS = 54  # more than all engines together can hold
USERS = 4  # of a group, each with one conversation
TURNS = 2
START_WORDS = 8  # with which all prompts begin: more than a block, as the same persona or date in a company's prompts
MOST_WORK = 1.25  # of the mean engine's


def alone(kind: str, plugin: Body, *, picks: bool = False) -> Body:
    """A configuration that places by one plugin alone: a scorer, or a picker where it ``picks``."""
    one = {"name": kind, **plugin}
    plugins = [{"name": "healthy", "type": "healthy"}, {"name": "best", "type": "max-score"}, one]
    profile = {"picker": kind} if picks else {"scorers": [{"plugin": kind}], "picker": "best"}
    return {"plugins": plugins, "profiles": [{"name": "default", "filters": ["healthy"], **profile}]}


ROUND_ROBIN = alone("turns", {"type": "round-robin"}, picks=True)
POLICIES: Mapping[str, Body] = {
    "default": {},
    "round robin": ROUND_ROBIN,
    "prefix-cache": alone("prefix", {"type": "prefix-cache"}),
    "session hashing": alone("session", {"type": "session-affinity", "parameters": {"by": "hash"}}),
}


@dataclass(frozen=True, slots=True)
class Served:
    """What one run took. Tokens, by the engines' counters. ``work``: of each engine."""

    cached: int
    prompt: int
    work: tuple[int, ...]
    errors: int

    @property
    def share(self) -> float:
        return self.cached / self.prompt

    @property
    def busiest(self) -> float:
        """The busiest engine's work, by the mean engine's."""
        return max(self.work) * len(self.work) / sum(self.work)


@dataclass(frozen=True, slots=True)
class Conversation:
    """Its ``questions`` are asked one after another, each with all that was said before, behind the group's prefix."""

    group: int
    session: str
    prefix: str
    questions: tuple[str, ...]


def chats(run: str) -> list[Conversation]:
    """The same chats in the same order for each run, but for the first word of the prefixes: no run helps another."""
    chance = random.Random(2026)
    return [conversation(run, chance.randrange(GROUPS), number, 1) for number in range(CHATS)]


def conversations(run: str) -> list[Conversation]:
    """As ``chats``: each of a group's users has one conversation, and they come in any order."""
    groups = [group for group in range(MANY_GROUPS) for _ in range(USERS)]
    random.Random(2026).shuffle(groups)
    start = f"{run} {passage('start', START_WORDS)}"
    return [conversation(start, group, number, TURNS) for number, group in enumerate(groups)]


def conversation(start: str, group: int, number: int, turns: int) -> Conversation:
    return Conversation(
        group,
        f"{start} {number}",
        f"{start} {passage(f'group {group}', PREFIX_WORDS)}",
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
    engines: Sequence[Engine], model_folder: Path, folder: Path, todo: Sequence[Conversation], config: Body
) -> Served:
    endpoints = [{"url": engine.url, "name": engine.name} for engine in engines]
    with run_gateway(folder, endpoints, {"tokenizer": str(model_folder)}, **config) as gateway:
        wait_for(lambda: set(gateway.streams().values()) == {"live"}, "the event streams", gateway.process)
        return await serve(engines, todo, lambda _: (gateway.url, MODEL))


def table(results: Mapping[str, Served]) -> Iterator[str]:
    """One line for each."""
    yield f"  {'':26} {'cached':>8} {'of':>8} {'share':>7} {'busiest':>8}  work of each engine"
    for name, it in results.items():
        work = " ".join(f"{each:7}" for each in it.work)
        yield f"  {name:26} {it.cached:8} {it.prompt:8} {it.share:7.3f} {it.busiest:8.3f}  {work}"


async def test_the_default_profile_serves_what_group_by_group_serves(
    engines: list[Engine],
    model_folder: Path,
    run_folder: Path,
    record_property: Callable[[str, object], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def through(run: str, config: Body) -> Served:
        return await through_a_gateway(engines, model_folder, run_folder, chats(run), config)

    own = await serve(engines, chats("one"), lambda one: (engines[one.group % len(engines)].url, SERVED_NAME))
    turns = await through("two", ROUND_ROBIN)
    default = await through("six", {})

    results = {"each group on its engine": own, "round robin": turns, "default profile": default}
    with capsys.disabled():
        print("", "30 groups, by the engines' counters:", *table(results), sep="\n")
    for name, served in results.items():
        record_property(f"cached tokens, {name}", served.cached)
        record_property(f"of each group's own engine, {name}", round(served.cached / own.cached, 4))

    assert (own.errors, turns.errors, default.errors) == (0, 0, 0)
    assert turns.cached < 0.7 * own.cached, "the caches are not too small for all groups: this shows nothing"
    assert default.cached >= LEAST_SHARE * own.cached


async def test_the_default_profile_serves_more_from_cache_than_others_and_spreads_the_work(
    engines: list[Engine],
    model_folder: Path,
    run_folder: Path,
    record_property: Callable[[str, object], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The prefixes exceed all caches together, and all begin alike. A session is one user's conversation: its group
    shares the prefix, and not the session, which names all turns of the conversation and nothing else."""
    results: dict[str, Served] = {}
    for run, (name, config) in zip(("one", "two", "six", "ten"), POLICIES.items(), strict=True):
        results[name] = await through_a_gateway(engines, model_folder, run_folder, conversations(run), config)

    with capsys.disabled():
        print("", f"{MANY_GROUPS} groups, by the engines' counters:", *table(results), sep="\n")
    for name, served in results.items():
        record_property(f"cached tokens, {name}", served.cached)
        record_property(f"busiest engine, {name}", round(served.busiest, 3))

    assert {name: served.errors for name, served in results.items()} == dict.fromkeys(results, 0)
    default = results.pop("default")
    room = len(engines) * KV_BYTES // TOKEN_BYTES
    assert prefix_tokens(engines[0]) > room, "all prefixes fit: this shows nothing"
    assert {name: served.cached for name, served in results.items() if served.cached >= default.cached} == {}
    assert default.busiest <= MOST_WORK


def prefix_tokens(engine: Engine) -> int:
    """Of all groups' own prefixes together."""
    asked = ({"prompt": passage(f"group {group}", PREFIX_WORDS)} for group in range(MANY_GROUPS))
    return sum(engine.ask("/tokenize", body).raise_for_status().json()["count"] for body in asked)
