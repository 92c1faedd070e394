"""Four workers, and three replicas that share their loads, serve from the engines' caches what one process does.

The chats of test_placement.py. What comes from caches, and how evenly the engines work, are the engines' own counts.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.commands.processes import wait_for
from tests.engines.engine import Engine
from tests.engines.gateway import MODEL, Gateway, run_gateway
from tests.engines.placing import Served, serve, table
from tests.engines.test_placement import chats
from tests.support.valkey import needs_valkey, valkey

WORKERS, REPLICAS = 4, 3
LEAST_SHARE = 0.95
"""Of one process's. Single runs differ by some 2 %; the medians of five by 0.2 %."""


@contextlib.contextmanager
def gateways(
    engines: Sequence[Engine], model: Path, folder: Path, *, replicas: int = 1, workers: int = 1, sharing: str = ""
) -> Iterator[list[Gateway]]:
    """They know what the engines hold, each worker for itself."""
    endpoints = [{"url": engine.url, "name": engine.name} for engine in engines]
    config = {"sharing": {"url": sharing, "name": "same"}} if sharing else {}
    with contextlib.ExitStack() as stack:
        started = [
            stack.enter_context(run_gateway(folder, endpoints, {"tokenizer": str(model)}, workers=workers, **config))
            for _ in range(replicas)
        ]
        for gateway in started:
            wait_for(lambda one=gateway: follows(one, workers * len(engines)), "the event streams", gateway.process)
        yield started


def follows(gateway: Gateway, streams: int) -> bool:
    live = {
        (line.get("worker"), line["endpoint"])
        for line in gateway.lines()
        if line["event"] == "KV event stream" and line["state"] == "live"
    }
    return len(live) == streams


async def through(engines: Sequence[Engine], gateways: Sequence[Gateway]) -> Served:
    """The same chats for all: with another name, the prefixes' last blocks would begin elsewhere."""
    urls = itertools.cycle(gateway.url for gateway in gateways)
    served = await serve(engines, chats("one"), lambda _: (next(urls), MODEL))
    lines = [line for gateway in gateways for line in gateway.requests()]
    return replace(served, expected=sum(line["expected_hit"] for line in lines))


@needs_valkey
async def test_several_deciders_place_as_one(
    engines: list[Engine],
    model_folder: Path,
    run_folder: Path,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    with gateways(engines, model_folder, run_folder) as one:
        alone = await through(engines, one)
    with gateways(engines, model_folder, run_folder, workers=WORKERS) as parent:
        of_workers = await through(engines, parent)
        served = {line["worker"] for line in parent[0].requests()}
    async with valkey(tmp_path) as store:
        with gateways(engines, model_folder, run_folder, replicas=REPLICAS, sharing=store.settings.url) as several:
            of_replicas = await through(engines, several)

    results = {"one process": alone, f"{WORKERS} workers": of_workers, f"{REPLICAS} replicas": of_replicas}
    with capsys.disabled():
        print("", "by the engines' counters:", *table(results), sep="\n")
    for name, found in results.items():
        record_property(f"share cached, {name}", round(found.share, 4))
        record_property(f"busiest engine, {name}", round(found.busiest, 3))

    assert {name: found.errors for name, found in results.items()} == dict.fromkeys(results, 0)
    assert len(served) > 1, "one worker had all connections: this shows nothing"
    assert {name: found.share for name, found in results.items() if found.share < LEAST_SHARE * alone.share} == {}
