"""A Service's EndpointSlices. The real server of ``make test-kubernetes`` is too old to have v1 of them."""

from __future__ import annotations

from typing import Any

from tests.support.kubernetes import SLICES, Cluster
from tests.support.kubernetes_followed import following
from tests.support.wait import eventually


def endpoint(pod: str, *addresses: str, ready: bool | None = True, **more: Any) -> dict[str, Any]:
    target = {"kind": "Pod", "name": pod, "uid": f"uid-of-{pod}"}
    return {"addresses": list(addresses), "conditions": {"ready": ready}, "targetRef": target, **more}


def slice_of(service: str, *endpoints: dict[str, Any], ports: tuple[int, ...] = (8000,), kind: str = "IPv4") -> Any:
    return {
        "metadata": {"labels": {"kubernetes.io/service-name": service}},
        "addressType": kind,
        "endpoints": list(endpoints),
        "ports": [{"name": f"p{port}", "port": port, "protocol": "TCP"} for port in ports],
    }


async def test_a_services_ready_endpoints(cluster: Cluster) -> None:
    ready = endpoint("a", "10.0.0.1", zone="eu-1")
    await cluster.create(SLICES, "one", slice_of("vllm", ready, endpoint("b", "10.0.0.2", ready=False)))
    await cluster.create(SLICES, "two", slice_of("vllm", endpoint("c", "10.0.0.3", ready=None)))
    await cluster.create(SLICES, "other", slice_of("web", endpoint("d", "10.0.0.4")))
    async with following(cluster, service="vllm") as seen:
        await seen.shows("a:8000 http://10.0.0.1:8000", "c:8000 http://10.0.0.3:8000")
        assert seen.endpoints[0].labels == {"topology.kubernetes.io/zone": "eu-1"}
        await cluster.call("PATCH", f"{SLICES}/one", {"endpoints": [ready, endpoint("b", "10.0.0.2")]})
        await eventually(lambda: len(seen.endpoints) == 3)
        await cluster.delete(f"{SLICES}/one")
        await seen.shows("c:8000 http://10.0.0.3:8000")


async def test_a_pod_with_two_families_is_one_endpoint(cluster: Cluster) -> None:
    await cluster.create(SLICES, "six", slice_of("vllm", endpoint("a", "fd00::1"), kind="IPv6"))
    await cluster.create(SLICES, "names", slice_of("vllm", endpoint("a", "a.example"), kind="FQDN"))
    async with following(cluster, service="vllm") as seen:
        await seen.shows("a:8000 http://[fd00::1]:8000")
        await cluster.create(SLICES, "four", slice_of("vllm", endpoint("a", "10.0.0.1")))
        await seen.shows("a:8000 http://10.0.0.1:8000")


async def test_of_several_ports_those_of_engines_must_be_named(cluster: Cluster) -> None:
    await cluster.create(SLICES, "one", slice_of("vllm", endpoint("a", "10.0.0.1"), ports=(8000, 8001, 9090)))
    async with following(cluster, service="vllm") as seen:
        await eventually(lambda: seen.losses)
        assert seen.losses[0] == "its pods have the ports 8000, 8001, 9090: name those that are engines as ports"
    async with following(cluster, service="vllm", ports=[8001, 8000]) as seen:
        await seen.shows("a:8000 http://10.0.0.1:8000", "a:8001 http://10.0.0.1:8001")


async def test_endpoints_without_a_pod_are_called_by_their_addresses(cluster: Cluster) -> None:
    await cluster.create(SLICES, "one", slice_of("vllm", {"addresses": ["10.0.0.1"]}))
    async with following(cluster, service="vllm") as seen:
        await seen.shows("None http://10.0.0.1:8000")


async def test_a_pod_in_several_slices_has_the_ports_of_all(cluster: Cluster) -> None:
    """Where a Service names its port, and pods have that name on different numbers."""
    await cluster.create(SLICES, "one", slice_of("vllm", endpoint("a", "10.0.0.1"), ports=(8001,)))
    await cluster.create(SLICES, "two", slice_of("vllm", endpoint("a", "10.0.0.1"), ports=(8000,)))
    async with following(cluster, service="vllm", ports=[8000, 8001]) as seen:
        await seen.shows("a:8000 http://10.0.0.1:8000", "a:8001 http://10.0.0.1:8001")
