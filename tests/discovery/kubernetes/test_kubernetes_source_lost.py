"""A source of Kubernetes of which a part cannot be read: what a real API server does not do on request."""

from __future__ import annotations

from simulator.kubernetes.server import ApiServer
from tests.support.kubernetes import POOLS, Cluster, pool
from tests.support.kubernetes_followed import following
from tests.support.wait import eventually


async def test_pods_are_followed_while_the_pool_cannot_be_read_and_that_is_told_with_them(
    server: ApiServer, cluster: Cluster
) -> None:
    await cluster.create(POOLS, "fleet", pool({"app": "vllm"}, 8000))
    await cluster.pod("a", "10.0.0.1")
    async with following(cluster, pool="fleet") as seen:
        await seen.shows("a:8000 http://10.0.0.1:8000")
        assert seen.problem == ""
        await cluster.call("PATCH", f"{POOLS}/fleet", {"spec": {"targetPorts": [{"number": "none"}]}})
        await eventually(lambda: seen.losses)
        await cluster.pod("b", "10.0.0.2")
        await seen.shows("a:8000 http://10.0.0.1:8000", "b:8000 http://10.0.0.2:8000")
        assert "cannot be read" in seen.problem
        await cluster.call("PATCH", f"{POOLS}/fleet", {"spec": {"targetPorts": [{"number": 8000}]}})
        await eventually(lambda: seen.problem == "")
