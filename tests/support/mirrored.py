"""Pods of a test's cluster as a ``Mirror`` sees them, and what it told."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import msgspec

from gateway.core.clock import SystemClock
from gateway.discovery.kubernetes.api import Api
from gateway.discovery.kubernetes.mirror import Collection, Mirror
from gateway.framework import Clock
from tests.support.kubernetes import PODS, Cluster
from tests.support.wait import eventually


class _Meta(msgspec.Struct):
    name: str
    uid: str
    labels: dict[str, str] = msgspec.field(default_factory=dict)


class _Pod(msgspec.Struct):
    metadata: _Meta


@dataclass(frozen=True)
class Seen:
    name: str
    uid: str
    stage: str


def view(raw: msgspec.Raw) -> Seen:
    meta = msgspec.json.decode(raw, type=_Pod).metadata
    return Seen(meta.name, meta.uid, meta.labels.get("stage", ""))


@dataclass
class Mirrored:
    """``told``: the names of all pods, each time that something changed. ``losses``: why it could not be read."""

    mirror: Mirror[Seen]
    told: list[list[str]] = field(default_factory=list)
    losses: list[str] = field(default_factory=list)

    def names(self) -> list[str]:
        return sorted(self.mirror.objects)

    async def shows(self, *names: str) -> None:
        await eventually(lambda: self.mirror.synced and self.names() == sorted(names), f"{names} are seen")


def mirrored(
    cluster: Cluster, labels: str = "app=vllm", *, silence: float = 30.0, clock: Clock | None = None
) -> Mirrored:
    """It does not run yet. ``clock``: by which watches last; None: the machine's."""
    found: Mirrored

    def changed() -> None:
        found.told.append(found.names())

    def lost(why: str) -> None:
        found.losses.append(why)

    api = Api(cluster.credentials, silence=silence)
    pods = Collection(PODS, view, labels)
    found = Mirrored(Mirror(api, pods, changed, lost, clock or SystemClock(), random.Random(1)))
    return found


@asynccontextmanager
async def running(mirror: Mirror[Seen]) -> AsyncIterator[None]:
    task = asyncio.get_running_loop().create_task(mirror.run())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
