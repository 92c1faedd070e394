"""deploy/kubernetes/rbac.yaml is enough to find engines, and gives no more."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
import yaml

from tests.kubernetes.real import LIMITED, RealServer
from tests.support.kubernetes import PODS, POOLS, Cluster, kubeconfig, pool
from tests.support.kubernetes_followed import following
from tests.support.wait import eventually

RBAC = Path(__file__).parents[2] / "deploy/kubernetes/rbac.yaml"
PATHS = {
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings",
}


@pytest.fixture
async def limited(cluster: Cluster, real: RealServer) -> Cluster:
    """``cluster``, with a kubeconfig of a user who may do nothing yet. Its own requests are an administrator's."""
    text = kubeconfig(real.url, cluster.namespace, LIMITED, authority=real.authority)
    cluster.kubeconfig.write_text(text)
    return cluster


async def apply(cluster: Cluster) -> None:
    """For the user ``limited``, and a pool ``fleet``."""
    for one in yaml.safe_load_all(RBAC.read_text().replace("POOL", "fleet")):
        if one["kind"] == "RoleBinding":
            one["subjects"] = [{"kind": "User", "name": "limited", "apiGroup": "rbac.authorization.k8s.io"}]
        if one["kind"] in PATHS:
            await cluster.call("POST", PATHS[one["kind"]], one)


async def test_a_missing_permission_is_named_and_heals(limited: Cluster) -> None:
    await limited.pod("a", "10.0.0.1")
    async with following(limited, selector="app=vllm", ports=[8000]) as seen:
        await eventually(lambda: seen.losses)
        assert 'User "limited" cannot list resource "pods"' in seen.losses[0]
        await apply(limited)
        await seen.shows("a:8000 http://10.0.0.1:8000")


async def test_a_pool_is_found_and_no_other_pool_nor_a_secret(limited: Cluster, real: RealServer) -> None:
    await apply(limited)
    await limited.create(POOLS, "fleet", pool({"app": "vllm"}, 8000))
    await limited.create(POOLS, "other", pool({"app": "vllm"}, 8000))
    await limited.pod("a", "10.0.0.1")
    async with following(limited, pool="fleet") as seen:
        await seen.shows("a:8000 http://10.0.0.1:8000")
    async with following(limited, pool="other") as seen:
        await eventually(lambda: seen.losses)
        assert "we lack a permission (403)" in seen.losses[0]
    headers = {"authorization": f"Bearer {LIMITED}"}
    async with httpx.AsyncClient(base_url=real.url, headers=headers, verify=real.trusted, trust_env=False) as client:
        for path in (f"{PODS}/a", "/api/v1/namespaces/{namespace}/secrets", "/api/v1/pods"):
            assert (await client.get(path.format(namespace=limited.namespace))).status_code == 403
