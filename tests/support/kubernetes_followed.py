"""What a source of Kubernetes tells."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from gateway.core.clock import SystemClock
from gateway.discovery.kubernetes.kubernetes_source import KubernetesSource
from gateway.discovery.kubernetes_settings import KubernetesSettings
from gateway.discovery.settings import DiscoverSettings
from gateway.fleet.settings import EndpointSettings
from tests.support.kubernetes import Cluster
from tests.support.wait import eventually


@dataclass
class Followed:
    """``lists``: all that it told, each endpoint as ``NAME URL``; the rest is of the last list."""

    lists: list[list[str]] = field(default_factory=list)
    endpoints: Sequence[EndpointSettings] = ()
    wrong: Sequence[str] = ()
    problem: str = ""
    """Of the last list."""
    losses: list[str] = field(default_factory=list)

    @property
    def last(self) -> list[str] | None:
        return self.lists[-1] if self.lists else None

    def found(self, endpoints: Sequence[EndpointSettings], wrong: Sequence[str] = (), problem: str = "", /) -> None:
        self.endpoints, self.wrong, self.problem = endpoints, wrong, problem
        self.lists.append([f"{endpoint.name} {endpoint.url}" for endpoint in endpoints])

    async def shows(self, *endpoints: str) -> None:
        await eventually(lambda: self.last == [*endpoints], f"{endpoints} are told, and not {self.last}")


@asynccontextmanager
async def following(cluster: Cluster, **where: Any) -> AsyncIterator[Followed]:
    """``where``: as in ``KubernetesSettings``."""
    ports = tuple(where.pop("ports", ()))
    settings = KubernetesSettings(kubeconfig=str(cluster.kubeconfig), ports=ports, **where)
    source = KubernetesSource(DiscoverSettings(kubernetes=settings), SystemClock())
    seen = Followed()
    task = asyncio.get_running_loop().create_task(source.follow(seen.found, seen.losses.append))
    try:
        yield seen
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
