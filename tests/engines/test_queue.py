"""A greedy tenant beside a light one on three real engines: with the queue of ``models[].queue``, and without.

The greedy tenant has 64 requests under way all the time. The light one sends one a second. Engines, gateway and clients
share a machine's cores, so that all first tokens are late beside the greedy tenant's work, whoever they are for: the
test compares the two ways, and holds neither to a figure.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.engines.engine import Engine
from tests.engines.gateway import MODEL, Gateway, run_gateway
from tests.engines.prompts import passage

GREEDY_AT_ONCE = 64
LIGHT_REQUESTS = 15
GAP = 1.0
KEYS = {name: f"kvg-the-key-of-{name}" for name in ("light", "greedy")}
TENANTS: dict[str, Any] = {
    "tenants": [{"name": name} for name in KEYS],
    "keys": [{"id": name, "tenant": name, "sha256": sha256(key.encode()).hexdigest()} for name, key in KEYS.items()],
}
QUEUE = {"max_wait": 60.0, "patience": 20.0}


@dataclass
class Seen:
    """``ttft``: seconds, of the light tenant's answers. ``greedy``: answers of the other. ``failed``: statuses."""

    ttft: list[float] = field(default_factory=list)
    greedy: int = 0
    seconds: float = 0.0
    failed: list[int] = field(default_factory=list)

    @property
    def row(self) -> str:
        ttft = sorted(self.ttft)
        return (
            f"light TTFT p50 {statistics.median(ttft) * 1e3:6.0f} ms, most {ttft[-1] * 1e3:6.0f} ms; "
            f"greedy {self.greedy / self.seconds:5.1f} answers/s; refused {len(self.failed)}"
        )


async def asked(client: httpx.AsyncClient, name: str, number: int, tokens: int, seen: Seen) -> float | None:
    """The time to its first token; None where it was refused."""
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": passage(f"{name} {number}", 60 if name == "greedy" else 20)}],
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": True,
    }
    began, first = time.monotonic(), None
    headers = {"Authorization": f"Bearer {KEYS[name]}"}
    async with client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as reply:
        if reply.status_code != 200:
            seen.failed.append(reply.status_code)
            return None
        async for line in reply.aiter_lines():
            if first is None and line.startswith("data: {"):
                choices = json.loads(line.removeprefix("data: "))["choices"]
                if choices and choices[0]["delta"].get("content"):
                    first = time.monotonic() - began
    return first


async def beside(gateway: Gateway, greedy: int) -> Seen:
    """What the light tenant sees beside so many requests of the greedy one."""
    seen, number = Seen(), 0
    limits = httpx.Limits(max_connections=200)
    async with httpx.AsyncClient(base_url=gateway.url, timeout=120, limits=limits) as client:

        async def one_after_the_other() -> None:
            nonlocal number
            while True:
                number += 1
                if await asked(client, "greedy", number, 48, seen) is not None:
                    seen.greedy += 1

        began = time.monotonic()
        busy = [asyncio.create_task(one_after_the_other()) for _ in range(greedy)]
        await asyncio.sleep(3 * GAP if greedy else 0)
        light = []
        for each in range(LIGHT_REQUESTS):
            light.append(asyncio.create_task(asked(client, "light", each, 8, seen)))
            await asyncio.sleep(GAP)
        seen.ttft = [ttft for ttft in await asyncio.gather(*light) if ttft is not None]
        seen.seconds = time.monotonic() - began
        for task in busy:
            task.cancel()
        await asyncio.gather(*busy, return_exceptions=True)
    return seen


async def test_a_light_tenant_does_not_wait_behind_a_greedy_one(
    engines: list[Engine],
    model_folder: Path,
    run_folder: Path,
    record_property: Callable[[str, object], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    endpoints = [{"url": engine.url, "name": engine.name} for engine in engines]
    found: dict[str, Seen] = {}
    for name, queue in (("placed at once", None), ("held in the queue", QUEUE)):
        model = {"tokenizer": str(model_folder), "queue": queue}
        with run_gateway(run_folder, endpoints, model, tenants=TENANTS) as gateway:
            if queue is not None:
                found[f"{name}, alone"] = await beside(gateway, 0)
            found[name] = await beside(gateway, GREEDY_AT_ONCE)
            if queue is not None:
                held = gateway.total("kvgate_queue_held_seconds_count", outcome="placed")
                assert held > GREEDY_AT_ONCE, "requests waited here, and not in the engines"
                assert gateway.total("kvgate_queue_requests") == 0
    with capsys.disabled():
        print()
        for name, seen in found.items():
            print(f"  {name:25} {seen.row}")
            record_property(name, seen.row)
    at_once, in_queue = found["placed at once"], found["held in the queue"]
    assert not at_once.failed
    assert not in_queue.failed
    assert len(in_queue.ttft) == LIGHT_REQUESTS
    assert statistics.median(in_queue.ttft) < statistics.median(at_once.ttft)
