"""Covers: gateway/discovery/kubernetes/kubernetes_source.py, gateway/discovery/kubernetes/pods.py,
gateway/discovery/kubernetes/pools.py, gateway/discovery/kubernetes/places.py.

Endpoints of an InferencePool and of a label selector; these run against a real API server, too.
"""

from __future__ import annotations

from typing import Any

from tests.support.kubernetes import PODS, POOLS, Cluster, pool
from tests.support.kubernetes_followed import following
from tests.support.wait import eventually


async def test_a_pools_endpoints_are_its_ready_pods_on_each_of_its_ports(cluster: Cluster) -> None:
    await cluster.create(POOLS, "fleet", pool({"app": "vllm"}, 8000, 8001))
    await cluster.pod("a", "10.0.0.1")
    await cluster.pod("waits")
    await cluster.pod("other", "10.0.0.9", app="web")
    async with following(cluster, pool="fleet") as seen:
        await seen.shows("a:8000 http://10.0.0.1:8000", "a:8001 http://10.0.0.1:8001")
        await cluster.status("waits", "10.0.0.2")
        await seen.shows(*on(8000, 8001, a="10.0.0.1", waits="10.0.0.2"))
        await cluster.status("a", "10.0.0.1", ready=False)
        await seen.shows(*on(8000, 8001, waits="10.0.0.2"))
        await cluster.delete(f"{PODS}/waits")
        await seen.shows()
    assert seen.losses == []


async def test_another_selector_and_other_ports_of_a_pool(cluster: Cluster) -> None:
    await cluster.create(POOLS, "fleet", pool({"app": "vllm"}, 8000))
    await cluster.pod("a", "10.0.0.1", tier="x")
    await cluster.pod("b", "10.0.0.2")
    async with following(cluster, pool="fleet") as seen:
        await seen.shows(*on(8000, a="10.0.0.1", b="10.0.0.2"))
        await cluster.call("PATCH", f"{POOLS}/fleet", {"spec": {"targetPorts": [{"number": 9000}]}})
        await seen.shows(*on(9000, a="10.0.0.1", b="10.0.0.2"))
        await cluster.call("PATCH", f"{POOLS}/fleet", {"spec": {"selector": {"matchLabels": {"tier": "x"}}}})
        await seen.shows(*on(9000, a="10.0.0.1"))
        assert [] not in seen.lists, "the list before stays until the new one is there"


async def test_a_pool_that_is_not_there_is_told_and_its_last_list_stays(cluster: Cluster) -> None:
    await cluster.pod("a", "10.0.0.1")
    async with following(cluster, pool="fleet") as seen:
        await eventually(lambda: seen.losses == ["there is no such InferencePool"])
        await cluster.create(POOLS, "fleet", pool({"app": "vllm"}, 8000))
        await seen.shows(*on(8000, a="10.0.0.1"))
        await cluster.delete(f"{POOLS}/fleet")
        await eventually(lambda: len(seen.losses) == 2)
        assert seen.last == [*on(8000, a="10.0.0.1")]
        await cluster.create(POOLS, "fleet", pool({"app": "vllm"}, 8000))
        await cluster.pod("b", "10.0.0.2")
        await seen.shows(*on(8000, a="10.0.0.1", b="10.0.0.2"))


async def test_a_selector_of_pods_with_roles_and_labels(cluster: Cluster) -> None:
    for number, role in enumerate(("prefill", "decode", "prefill-decode", "encode", "encode-prefill", "chef")):
        await cluster.pod(role, f"10.0.0.{number + 1}", **{"llm-d.ai__role": role})
    await cluster.pod("none", "10.0.0.9", zone="z")
    async with following(cluster, selector="app in (vllm)", ports=[8000]) as seen:
        await eventually(lambda: len(seen.endpoints) == 5)
        roles = {endpoint.name: endpoint.role for endpoint in seen.endpoints}
        assert roles == {
            "prefill:8000": "prefill",
            "decode:8000": "decode",
            "prefill-decode:8000": "both",
            "encode-prefill:8000": "prefill",
            "none:8000": "both",
        }
        assert seen.endpoints[2].labels == {"app": "vllm", "zone": "z"}
        assert len(seen.wrong) == 1
        assert "pod chef: its label llm-d.ai/role is 'chef'" in seen.wrong[0]


async def test_a_pod_may_name_its_active_ports(cluster: Cluster) -> None:
    await cluster.create(POOLS, "fleet", pool({"app": "vllm"}, 8000, 8001, 8002))
    await cluster.pod("a", "10.0.0.1")
    async with following(cluster, pool="fleet") as seen:
        await seen.shows(*on(8000, 8001, 8002, a="10.0.0.1"))
        await annotate(cluster, "a", {"inference.networking.k8s.io/active-ports": "8001, 9999"})
        await seen.shows(*on(8001, a="10.0.0.1"))
        await annotate(cluster, "a", {"llm-d.ai/active-ports": "8000,8002"})
        await seen.shows(*on(8000, 8002, a="10.0.0.1"))
        await annotate(cluster, "a", {"llm-d.ai/active-ports": "all"})
        await seen.shows()
        assert seen.wrong == ["pod a: its annotation for active ports is 'all', and no list of ports"]


async def test_a_pod_that_is_being_deleted_is_gone(cluster: Cluster) -> None:
    """Kubernetes keeps it, still ready, for as long as it may take to end."""
    await cluster.pod("a", "10.0.0.1")
    await cluster.call("PATCH", f"{PODS}/a", {"metadata": {"finalizers": ["kvgate.test/wait"]}})
    async with following(cluster, selector="app=vllm", ports=[8000]) as seen:
        await seen.shows(*on(8000, a="10.0.0.1"))
        await cluster.delete(f"{PODS}/a")
        await seen.shows()
        await cluster.call("PATCH", f"{PODS}/a", {"metadata": {"finalizers": None}})


async def test_a_pod_under_the_same_name_at_another_address(cluster: Cluster) -> None:
    await cluster.pod("a-0", "10.0.0.1")
    async with following(cluster, selector="app=vllm", ports=[8000]) as seen:
        await seen.shows("a-0:8000 http://10.0.0.1:8000")
        await cluster.delete(f"{PODS}/a-0")
        await cluster.pod("a-0", "10.0.0.2")
        await seen.shows("a-0:8000 http://10.0.0.2:8000")


async def test_a_pod_made_again_with_its_name_and_address_is_another_endpoint(cluster: Cluster) -> None:
    await cluster.pod("a-0", "10.0.0.1")
    async with following(cluster, selector="app=vllm", ports=[8000]) as seen:
        await seen.shows("a-0:8000 http://10.0.0.1:8000")
        await cluster.delete(f"{PODS}/a-0")
        made = await cluster.pod("a-0", "10.0.0.1")
        again = f"a-0.{made['metadata']['uid'][:8]}:8000 http://10.0.0.1:8000"
        await seen.shows(again)
        await cluster.pod("b", "10.0.0.2")
        await seen.shows(again, "b:8000 http://10.0.0.2:8000")


async def test_an_address_used_again_is_another_endpoint(cluster: Cluster) -> None:
    """Even where the first pod is still told as ready: the younger one has it."""
    await cluster.pod("old", "10.0.0.1")
    async with following(cluster, selector="app=vllm", ports=[8000]) as seen:
        await seen.shows("old:8000 http://10.0.0.1:8000")
        await cluster.delete(f"{PODS}/old")
        await cluster.pod("new", "10.0.0.1")
        await seen.shows("new:8000 http://10.0.0.1:8000")


async def test_an_ipv6_address_has_brackets(cluster: Cluster) -> None:
    await cluster.pod("a", "fd00::1")
    async with following(cluster, selector="app=vllm", ports=[8000]) as seen:
        await seen.shows("a:8000 http://[fd00::1]:8000")


async def annotate(cluster: Cluster, name: str, annotations: dict[str, Any]) -> None:
    await cluster.call("PATCH", f"{PODS}/{name}", {"metadata": {"annotations": annotations}})


def on(*ports: int, **pods: str) -> list[str]:
    return [f"{name}:{port} http://{ip}:{port}" for name, ip in pods.items() for port in ports]
