"""The endpoints of a model in a Kubernetes cluster, as they come and go: an entry ``kubernetes`` of ``discover``."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable
from functools import partial

from gateway.core.tasks import TaskSet
from gateway.discovery.kubernetes import pods, pools, slices
from gateway.discovery.kubernetes.access import Credentials, credentials
from gateway.discovery.kubernetes.api import Api
from gateway.discovery.kubernetes.mirror import Collection, Mirror, V
from gateway.discovery.kubernetes.places import Places
from gateway.discovery.settings import DiscoverSettings
from gateway.discovery.source import Found, Lost
from gateway.framework import Clock


class KubernetesSource:
    """``found_by``: how the API server is reached; None: as the settings say."""

    def __init__(self, settings: DiscoverSettings, clock: Clock, found_by: Credentials | None = None) -> None:
        assert settings.kubernetes is not None
        self._settings = where = settings.kubernetes
        self._places = Places(settings)
        self._api = Api(found_by or credentials(where.kubeconfig, where.context, os.environ), where.namespace)
        self._clock = clock

    async def follow(self, found: Found, lost: Lost) -> None:
        following = _Following(self._api, self._places, self._clock, found, lost)
        try:
            if self._settings.pool is not None:
                await following.pool(self._settings.pool)
            elif self._settings.service is not None:
                await following.service(self._settings.service, self._settings.ports)
            else:
                assert self._settings.selector is not None
                await following.selected(self._settings.selector, self._settings.ports)
        finally:
            await following.tasks.close()


class _Following:
    def __init__(self, api: Api, places: Places, clock: Clock, found: Found, lost: Lost) -> None:
        self.tasks = TaskSet()
        self._api, self._places, self._clock = api, places, clock
        self._found, self._lost = found, lost
        self._problems: dict[str, str] = {}
        """Why what is followed cannot be read now, by what that is: the pool and its pods fail each for itself."""
        self._pods: Mirror[pods.Pod] | None = None
        self._pods_task: asyncio.Task[None] | None = None
        self._labels = ""

    async def selected(self, labels: str, ports: tuple[int, ...]) -> None:
        def changed() -> None:
            self._tell(mirror, ports)

        mirror = self._mirror("pods", pods.selected(labels), changed)
        await mirror.run()

    async def service(self, name: str, ports: tuple[int, ...]) -> None:
        def changed() -> None:
            try:
                self._found(*self._places.endpoints(slices.places(mirror.objects.values(), ports)))
            except slices.ManyPorts as error:
                self._lose("slices", str(error))

        mirror = self._mirror("slices", slices.of_service(name), changed)
        await mirror.run()

    async def pool(self, name: str) -> None:
        """Its pods are watched beside it, and anew where it selects others: until these are listed, the last list
        stays. The same goes for a pool that is gone, which may be an operator's slip."""

        def changed() -> None:
            pool = mirror.objects.get(name)
            if pool is None or not (pool.labels and pool.ports):
                self._watch_pods("")
                lacks = "there is no such InferencePool" if pool is None else "it selects no labels, or has no ports"
                self._lose("pool", lacks)
            elif pool.labels != self._labels:
                self._watch_pods(pool.labels, pods_changed)
            else:
                pods_changed()

        def pods_changed() -> None:
            pool = mirror.objects.get(name)
            if self._pods is not None and self._pods.synced and pool is not None:
                self._tell(self._pods, pool.ports)

        mirror = self._mirror("pool", pools.named(name), changed)
        await mirror.run()

    def _watch_pods(self, labels: str, changed: Callable[[], None] = lambda: None) -> None:
        """``labels``: of the pods that are watched from now on; empty: of none."""
        if self._pods_task is not None:
            self._pods_task.cancel()
        self._labels, self._pods, self._pods_task = labels, None, None
        self._problems.pop("pods", None)
        if labels:
            self._pods = self._mirror("pods", pods.selected(labels), changed)
            self._pods_task = self.tasks.start(self._pods.run(), name=f"watch pods {labels}")

    def _tell(self, mirror: Mirror[pods.Pod], ports: tuple[int, ...]) -> None:
        places, wrong = pods.places(mirror.objects.values(), ports)
        endpoints, wrong_too = self._places.endpoints(places)
        self._found(endpoints, [*wrong, *wrong_too], "; ".join(self._problems.values()))

    def _lose(self, what: str, why: str) -> None:
        self._problems[what] = why
        self._lost("; ".join(self._problems.values()))

    def _mirror(self, what: str, collection: Collection[V], changed: Callable[[], None]) -> Mirror[V]:
        def heard() -> None:
            self._problems.pop(what, None)
            changed()

        return Mirror(self._api, collection, heard, partial(self._lose, what), self._clock, random.Random())
