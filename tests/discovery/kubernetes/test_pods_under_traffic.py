"""Covers: gateway/discovery/kubernetes/kubernetes_source.py.

A whole gateway on a simulated cluster: pods come, leave, hang, die and change their addresses under traffic, and the
API server fails meanwhile. No request is lost that had not begun.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from gateway.config.settings import Config
from gateway.discovery.kubernetes_settings import KubernetesSettings
from gateway.discovery.settings import DiscoverSettings
from gateway.flow.settings import FlowSettings
from gateway.proxy.settings import RetrySettings, TimeoutSettings
from simulator.kubernetes.server import ApiServer
from simulator.server import EngineServer
from simulator.settings import EngineSettings
from tests.support.chat import chat
from tests.support.examples import slowly
from tests.support.gateway import PATIENT_FLEET, Running, config_for, running
from tests.support.kubernetes import PODS, POOLS, Cluster, pool
from tests.support.ports import free_in_a_row
from tests.support.wait import eventually

CLIENTS = 8
HUNG = 2.0
"""Seconds until a request is taken from an engine that hangs."""


@dataclass
class Fleet:
    """Pods with engines at addresses of their own, all on one port, as a pool's are."""

    cluster: Cluster
    tokenizer: str
    port: int = field(default_factory=free_in_a_row)
    engines: dict[str, EngineServer] = field(default_factory=dict)
    addresses: dict[str, str] = field(default_factory=dict)
    numbers: Any = field(default_factory=lambda: itertools.count(1))

    @property
    def expected(self) -> set[str]:
        return {f"http://{ip}:{self.port}" for ip in self.addresses.values()}

    def free_address(self) -> str:
        return f"127.0.9.{next(self.numbers)}"

    async def start(self, name: str, ip: str | None = None) -> None:
        """It is ready once its engine answers."""
        ip = ip or self.free_address()
        engine = EngineServer(EngineSettings(tokenizer=self.tokenizer, step_seconds=0.001))
        await engine.start(ip, self.port)
        self.engines[name], self.addresses[name] = engine, ip
        await self.cluster.pod(name, ip)
        await self.cluster.call("PATCH", f"{PODS}/{name}", {"metadata": {"finalizers": ["kvgate.test/ends"]}})

    async def leave(self, name: str, gone: Callable[[str], bool]) -> str:
        """As the kubelet ends a pod: it is marked, its engine ends what it has, and then it is gone. Returns its
        address. ``gone``: whether nobody sends anything to this URL any more."""
        ip = self.addresses.pop(name)
        engine = self.engines.pop(name)
        await self.cluster.delete(f"{PODS}/{name}")
        await eventually(lambda: gone(f"http://{ip}:{self.port}") and engine.running + engine.waiting == 0)
        await engine.close()
        await self.remove(name)
        return ip

    async def die(self, name: str) -> None:
        """Its machine is lost: the cluster notices later."""
        self.addresses.pop(name)
        await self.engines.pop(name).kill()
        await self.cluster.delete(f"{PODS}/{name}")
        await self.remove(name)

    async def hang(self, name: str) -> None:
        """Its engine answers nothing more, which the kubelet sees by its readiness, and ends it."""
        ip = self.addresses.pop(name)
        engine = self.engines.pop(name)
        engine.faults.inject("hang")
        before = engine.received[-1:]
        await eventually(lambda: engine.received[-1:] != before, "a request or a scrape goes there meanwhile")
        await self.cluster.status(name, ip, ready=False)
        await self.cluster.delete(f"{PODS}/{name}")
        await eventually(lambda: engine.running + engine.waiting == 0)
        await engine.kill()
        await self.remove(name)

    async def remove(self, name: str) -> None:
        await self.cluster.call("PATCH", f"{PODS}/{name}", {"metadata": {"finalizers": None}})


@dataclass
class Traffic:
    """``under_way``: requests now, by number. ``failed``: what was wrong with an answer."""

    gateway: Running
    under_way: set[int] = field(default_factory=set)
    done: int = 0
    failed: list[str] = field(default_factory=list)

    async def client(self, seed: int) -> None:
        chance = random.Random(seed)
        for number in itertools.count(seed, CLIENTS):
            self.under_way.add(number)
            streamed = chance.random() < 0.5
            body = chat(chance.randrange(8), number, words=60, stream=streamed)
            try:
                answer = await self.gateway.client.post("/v1/chat/completions", json=body, timeout=60)
                broken = streamed and "data: [DONE]" not in answer.text
                if answer.status_code != 200 or (broken and '"content"' not in answer.text):
                    self.failed.append(f"{answer.status_code} {answer.text[:300]}")
            except httpx.HTTPError as error:
                self.failed.append(repr(error))
            self.under_way.discard(number)
            self.done += 1

    async def round(self) -> None:
        """Until all requests that are under way now have ended: a second engine's death would be one too many."""
        now = set(self.under_way)
        await eventually(lambda: not (now & self.under_way))

    @contextlib.asynccontextmanager
    async def flows(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self.client(seed)) for seed in range(CLIENTS)]
            yield
            await self.round()
            for task in tasks:
                task.cancel()


def config_of(cluster: Cluster, tokenizer: str) -> Config:
    where = DiscoverSettings(kubernetes=KubernetesSettings(pool="fleet", kubeconfig=str(cluster.kubeconfig)))
    return config_for(
        endpoints=(),
        discover=(where,),
        tokenizer=tokenizer,
        fleet=PATIENT_FLEET,
        timeouts=TimeoutSettings(head=HUNG),
        retries=RetrySettings(attempts=6, budget=1.0),
        limits=FlowSettings(no_endpoint_timeout=60.0),
    )


@pytest.mark.parametrize("rounds", [1, *slowly(30)])
async def test_no_request_is_lost_that_had_not_begun(
    server: ApiServer, cluster: Cluster, tokenizer: str, rounds: int
) -> None:
    chance = random.Random(rounds)
    fleet = Fleet(cluster, tokenizer)
    await cluster.create(POOLS, "fleet", pool({"app": "vllm"}, fleet.port))
    try:
        async with running(config_of(cluster, tokenizer)) as gateway:

            def urls() -> set[str]:
                runtimes = gateway.gateway.directory.runtimes
                return {e.engine.url for one in runtimes for e in gateway.gateway.fleet.endpoints(one.model)}

            traffic = Traffic(gateway)
            async with traffic.flows():  # the first requests wait for the first pod
                for name in ("a-0", "a-1", "a-2"):
                    await fleet.start(name)
                for number in range(rounds):
                    await upset(server, chance)
                    await fleet.start(f"b-{number}")
                    ip = await fleet.leave("a-0", lambda url: url not in urls())
                    await fleet.start("a-0")  # the same pod at another address
                    await fleet.start(f"c-{number}", ip)  # another pod at that address
                    await eventually(lambda: urls() == fleet.expected)
                    await traffic.round()
                    await fleet.die(f"b-{number}")
                    await traffic.round()
                    await fleet.hang("a-1")
                    await fleet.start("a-1")
                    await traffic.round()
                    await fleet.leave(f"c-{number}", lambda url: url not in urls())
                    await eventually(lambda: urls() == fleet.expected)
                await traffic.round()
            assert traffic.failed == []
            assert traffic.done > CLIENTS
            await eventually(gateway.idle)
    finally:
        for engine in fleet.engines.values():
            await engine.close()


async def upset(server: ApiServer, chance: random.Random) -> None:
    """One of the API server's failures."""
    match chance.randrange(4):
        case 0:
            server.cut()
        case 1:
            server.store.compact()
            server.cut()
        case 2:
            server.faults.statuses = [500, 410, 429]
            server.cut()
        case 3:
            await server.stop()
            server.store.compact()
            await server.start()
