"""Covers: gateway/objectives.py, gateway/discovery/kubernetes/objectives.py.

Priorities of InferenceObjectives, as they come to a whole gateway.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.config.settings import Config
from gateway.discovery.kubernetes import mirror
from gateway.discovery.kubernetes_settings import KubernetesSettings
from gateway.discovery.settings import DiscoverSettings
from gateway.tenants.settings import TenantSettings, TenantsSettings
from simulator.kubernetes.server import ApiServer
from tests.support.gateway import Running, config_for, running
from tests.support.kubernetes import OBJECTIVES, POOLS, Cluster, objective, pool, simulated
from tests.support.wait import eventually

NEW, OLD = OBJECTIVES


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer() as server:
        yield server


@pytest.fixture
async def cluster(server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cluster]:
    """It has the two pools."""
    monkeypatch.setattr(mirror, "LONGEST_PAUSE", 0.1)
    async with simulated(server, tmp_path) as cluster:
        for name in ("fleet", "other"):
            await cluster.create(POOLS, name, pool({"app": name}, 8000))
        yield cluster


def config_of(cluster: Cluster, **pools: bool) -> Config:
    """``pools``: by name, whether their objectives are followed."""
    sources = [
        DiscoverSettings(
            kubernetes=KubernetesSettings(pool=name, kubeconfig=str(cluster.kubeconfig), objectives=objectives)
        )
        for name, objectives in pools.items()
    ]
    tenants = TenantsSettings(
        tenants=(TenantSettings("default", bands=(-5, 5)),), objectives={"fixed": 3, "overridden": 4}
    )
    return config_for(endpoints=(), discover=tuple(sources), tenants=tenants)


async def shows(gateway: Running, **wanted: int) -> None:
    always = {"fixed": 3, "overridden": 4}
    await eventually(lambda: gateway.gateway.rooms.sources.directory.anyone.objectives == {**always, **wanted})


async def test_a_pools_objectives_are_bands_as_they_come_change_and_go(cluster: Cluster) -> None:
    await cluster.create(NEW, "urgent", objective("fleet", 2))
    await cluster.create(NEW, "overridden", objective("fleet", -9))
    await cluster.create(NEW, "of-another-pool", objective("other", 1))
    config = config_of(cluster, fleet=True, other=False)
    async with running(config) as gateway:
        await shows(gateway, urgent=2)
        await cluster.create(NEW, "batch", objective("fleet", -100))
        await cluster.create(NEW, "unset", objective("fleet", None))
        await shows(gateway, urgent=2, batch=-10, unset=0)
        await cluster.delete(f"{NEW}/urgent")
        await shows(gateway, batch=-10, unset=0)
        models = config_of(cluster, other=True).models
        assert (await gateway.reload(replace(config, models=models))).status_code == 200
        await shows(gateway, **{"of-another-pool": 1})
        assert (await gateway.reload(replace(config, models=config_of(cluster, fleet=False).models))).status_code == 200
        await shows(gateway)


async def test_the_older_group_counts_only_where_the_newer_one_is_unknown(server: ApiServer, cluster: Cluster) -> None:
    known = "apis/llm-d.ai/v1alpha2/inferenceobjectives"
    server.resources.discard(known)
    await cluster.create(OLD, "old", objective("fleet", 1))
    async with running(config_of(cluster, fleet=True)) as gateway:
        await shows(gateway, old=1)
        server.resources.add(known)
        await cluster.create(NEW, "new", objective("fleet", 2))
        await shows(gateway, new=2)


async def test_what_cannot_be_read_keeps_what_was_found(
    server: ApiServer, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    await cluster.create(NEW, "urgent", objective("fleet", 2))
    async with running(config_of(cluster, fleet=True)) as gateway:
        await shows(gateway, urgent=2)
        await server.stop()
        await eventually(lambda: "its objectives cannot be read" in caplog.text)
        await shows(gateway, urgent=2)
        await server.start()
        await cluster.delete(f"{NEW}/urgent")
        await shows(gateway)
