"""The default profile keeps groups of chats on the engines that hold them, where no engine can hold them all.

Three engines with 5120 tokens of KV memory each. Chats of many groups, each with a long prefix in common, six at a
time. Measured by the engines' own counters: prompt tokens served from the prefix cache, and work, which is prompt
tokens that had to be computed and tokens that were generated.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.engines.chats import Body
from tests.engines.engine import KV_BYTES, SERVED_NAME, TOKEN_BYTES, Engine
from tests.engines.placing import Conversation, Served, conversation, serve, table, through_a_gateway
from tests.engines.prompts import passage

PREFIX_WORDS = 70  # about 11 of an engine's 160 blocks

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


def chats(run: str) -> list[Conversation]:
    """The same chats in the same order for each run, but for the first word of the prefixes: no run helps another."""
    chance = random.Random(2026)
    return [conversation(run, chance.randrange(GROUPS), number, 1, PREFIX_WORDS) for number in range(CHATS)]


def conversations(run: str) -> list[Conversation]:
    """As ``chats``: each of a group's users has one conversation, and they come in any order."""
    groups = [group for group in range(MANY_GROUPS) for _ in range(USERS)]
    random.Random(2026).shuffle(groups)
    start = f"{run} {passage('start', START_WORDS)}"
    return [conversation(start, group, number, TURNS, PREFIX_WORDS) for number, group in enumerate(groups)]


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
