"""The queue of ``models[].queue`` beside the priority scheduling of vLLM, for a greedy tenant and a light one.

Three engines with the priority scheduling of vLLM, which is first come, first served as long as all requests have the
same priority. The greedy tenant has 64 requests at once: about twice what the engines' KV memory holds. The light one
sends one request a second. Each way is measured for the same time, one after another, and printed as a table.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.commands.processes import wait_for
from tests.engines.engine import Engine, serving
from tests.engines.gateway import MODEL, Gateway, run_gateway
from tests.engines.prompts import passage

AT_ONCE = 64
SECONDS = 6  # of each way
PACE = 1.0  # seconds between two light requests: the load, whatever has become of the one before
WARM_UP = 3.0  # seconds of greedy requests before: the engines are full, and the cost model has seen them
GREEDY_WORDS, GREEDY_OUTPUT = 100, 32  # about 420 and 32 tokens: 11 such requests fill an engine's KV memory
LIGHT_WORDS, LIGHT_OUTPUT = 15, 8
KEYS = {"light": "kvg-light", "greedy": "kvg-greedy"}
TENANTS = {
    "tenants": [{"name": name} for name in KEYS],
    "keys": [
        {"id": name, "sha256": hashlib.sha256(key.encode()).hexdigest(), "tenant": name} for name, key in KEYS.items()
    ],
}
# The greedy tenant would rather wait than be refused: what is compared is who waits, and all are served.
QUEUE = {"max_wait": 60.0}


@dataclass(slots=True)
class Run:
    """What one way gave. ``light``: seconds to each of the light tenant's first tokens. ``greedy``: requests that were
    answered while it was measured."""

    light: list[float] = field(default_factory=list)
    greedy: int = 0
    failed: list[str] = field(default_factory=list)

    def percentile(self, share: float) -> float:
        """Of ``light``, in seconds."""
        return sorted(self.light)[min(len(self.light) - 1, int(share * len(self.light)))]


@pytest.fixture
def prioritizing(engine_venv: Path, model_folder: Path, run_folder: Path) -> Iterator[list[Engine]]:
    engines = [
        Engine(f"prio-{name}", engine_venv, model_folder, run_folder, flags=("--scheduling-policy", "priority"))
        for name in "abc"
    ]
    with serving(*engines):
        yield engines


def body(name: str, words: int, output: int, priority: int) -> dict[str, Any]:
    return {
        "model": MODEL,
        "prompt": passage(name, words),
        "max_tokens": output,
        "priority": priority,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
    }


async def first_token(session: aiohttp.ClientSession, gateway: Gateway, tenant: str, asked: dict[str, Any]) -> float:
    """Seconds until the first event of an answer that is then read to its end. Raises RuntimeError if it has none."""
    began, first = time.monotonic(), 0.0
    headers = {"authorization": f"Bearer {KEYS[tenant]}"}
    async with session.post(f"{gateway.url}/v1/completions", json=asked, headers=headers) as response:
        if response.status != 200:
            raise RuntimeError(f"{tenant}: {response.status} {await response.text()}")
        last = b""
        async for line in response.content:
            if line.startswith(b"data:"):
                first = first or time.monotonic() - began
                last = line
        if last.strip() != b"data: [DONE]":
            raise RuntimeError(f"{tenant}: the answer ended with {last!r}")
    return first


async def measure(gateway: Gateway, name: str, *, at_once: int = AT_ONCE, priority: int = 0) -> Run:
    """Both tenants' requests; ``at_once``, ``priority``: of the greedy one."""
    run, over, measured = Run(), asyncio.Event(), False
    timeout = aiohttp.ClientTimeout(total=120.0)
    connector = aiohttp.TCPConnector(limit=0)

    async def greedy(session: aiohttp.ClientSession, worker: int) -> None:
        number = 0
        while not over.is_set():
            asked = body(f"{name} greedy {worker} {number}", GREEDY_WORDS, GREEDY_OUTPUT, priority)
            number += 1
            try:
                await first_token(session, gateway, "greedy", asked)
            except (RuntimeError, aiohttp.ClientError) as error:
                run.failed.append(str(error))
                return
            run.greedy += measured

    async def light(session: aiohttp.ClientSession, number: int) -> None:
        asked = body(f"{name} light {number}", LIGHT_WORDS, LIGHT_OUTPUT, 0)
        try:
            run.light.append(await first_token(session, gateway, "light", asked))
        except (RuntimeError, aiohttp.ClientError) as error:
            run.failed.append(str(error))

    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session, asyncio.TaskGroup() as group:
        for worker in range(at_once):
            group.create_task(greedy(session, worker))
        await asyncio.sleep(WARM_UP)
        measured = True
        for number in range(int(SECONDS / PACE)):
            group.create_task(light(session, number))
            await asyncio.sleep(PACE)
        measured = False
        over.set()
    return run


def table(runs: Mapping[str, Run]) -> Iterator[str]:
    yield f"  {'':28} {'light p50, ms':>14} {'slowest':>9} {'greedy, 1/s':>12}"
    for name, run in runs.items():
        p50, slowest = 1000 * run.percentile(0.5), 1000 * max(run.light)
        yield f"  {name:28} {p50:14.0f} {slowest:9.0f} {run.greedy / SECONDS:12.1f}"


def test_the_queue_beside_the_priority_scheduling_of_vllm(
    prioritizing: Sequence[Engine],
    model_folder: Path,
    run_folder: Path,
    record_property: Callable[[str, object], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    endpoints = [{"url": engine.url, "name": engine.name} for engine in prioritizing]
    model = {"tokenizer": str(model_folder)}
    runs: dict[str, Run] = {}

    def live(gateway: Gateway) -> Gateway:
        wait_for(lambda: set(gateway.streams().values()) == {"live"}, "the event streams", gateway.process)
        return gateway

    with run_gateway(run_folder, endpoints, model, tenants=TENANTS) as gateway:
        live(gateway)
        runs["light alone"] = asyncio.run(measure(gateway, "one", at_once=0))
        runs["placed at once"] = asyncio.run(measure(gateway, "two"))
        runs["vLLM's priority"] = asyncio.run(measure(gateway, "six", priority=10))
    with run_gateway(run_folder, endpoints, {**model, "queue": QUEUE}, tenants=TENANTS) as gateway:
        live(gateway)
        runs["queue, fair by cost"] = asyncio.run(measure(gateway, "ten"))
        held = gateway.total("kvgate_queue_held_seconds_count", model=MODEL, outcome="placed")
        shed = gateway.total("kvgate_shed_total", model=MODEL)

    assert {name: run.failed for name, run in runs.items()} == {name: [] for name in runs}
    assert {name: len(run.light) for name, run in runs.items()} == dict.fromkeys(runs, SECONDS)

    with capsys.disabled():
        print("", f"A greedy tenant with {AT_ONCE} requests at once, three engines:", *table(runs), sep="\n")
    for name, run in runs.items():
        record_property(f"light p50 in s, {name}", round(run.percentile(0.5), 4))
        record_property(f"light slowest in s, {name}", round(max(run.light), 4))
        record_property(f"greedy requests/s, {name}", round(run.greedy / SECONDS, 2))

    assert (held > 0, shed) == (True, 0), "nothing waited in the queue: this shows nothing"
    # Times are told, not held to a bound: engines, gateway and clients share a machine's cores.
