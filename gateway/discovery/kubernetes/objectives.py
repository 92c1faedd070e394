"""A pool's InferenceObjectives: priorities by the names that requests give."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from gateway.core.tasks import TaskSet
from gateway.discovery.kubernetes.access import credentials
from gateway.discovery.kubernetes.api import Api
from gateway.discovery.kubernetes.mirror import Collection, Mirror
from gateway.discovery.kubernetes_settings import KubernetesSettings
from gateway.discovery.source import Lost
from gateway.framework import Clock

GROUPS = ("llm-d.ai", "inference.networking.x-k8s.io")
"""Of the API. The second is the older one: it counts only where the first is not known to the server."""


class _Meta(msgspec.Struct):
    name: str
    uid: str = ""


class _Pool(msgspec.Struct):
    name: str = ""


class _Spec(msgspec.Struct, rename="camel"):
    priority: int | None = None
    pool_ref: _Pool = msgspec.field(default_factory=_Pool)


class _Objective(msgspec.Struct):
    metadata: _Meta
    spec: _Spec = msgspec.field(default_factory=_Spec)


_OBJECTIVE = msgspec.json.Decoder(_Objective)


@dataclass(frozen=True, slots=True)
class Objective:
    """``pool``: the name of the pool that it is for."""

    name: str
    uid: str
    priority: int
    pool: str


def view(raw: msgspec.Raw) -> Objective:
    """Raises msgspec.MsgspecError."""
    one = _OBJECTIVE.decode(raw)
    return Objective(one.metadata.name, one.metadata.uid, one.spec.priority or 0, one.spec.pool_ref.name)


class PoolObjectives:
    """Those for the pool that ``settings`` names."""

    def __init__(self, settings: KubernetesSettings, clock: Clock) -> None:
        self._pool = settings.pool
        self._api = Api(credentials(settings.kubeconfig, settings.context, os.environ), settings.namespace)
        self._clock = clock

    async def follow(self, found: Callable[[Mapping[str, int]], None], lost: Lost) -> None:
        """For ever: tell all priorities by their names, after each change, or why they cannot be read now."""

        def changed() -> None:
            told = newer if newer.synced else older
            found({one.name: one.priority for one in told.objects.values() if one.pool == self._pool})

        def newer_lost(why: str) -> None:
            if newer.synced or not older.synced:
                lost(why)

        def older_lost(why: str) -> None:
            if older.synced and not newer.synced:
                lost(why)

        newer = self._mirror(GROUPS[0], changed, newer_lost)
        older = self._mirror(GROUPS[1], changed, older_lost)
        tasks = TaskSet()
        try:
            tasks.start(older.run(), name="watch the older InferenceObjectives")
            await newer.run()
        finally:
            await tasks.close()

    def _mirror(self, group: str, changed: Callable[[], None], lost: Lost) -> Mirror[Objective]:
        path = f"/apis/{group}/v1alpha2/namespaces/{{namespace}}/inferenceobjectives"
        return Mirror(self._api, Collection(path, view), changed, lost, self._clock, random.Random())
