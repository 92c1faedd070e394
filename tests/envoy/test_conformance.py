"""What the conformance suite of the Gateway API's inference extension (v1.6) asks of a gateway with its picker, as far
as it needs no cluster. Pods are addresses on loopback. Tests have the suite's names.

Where its own picker selects by a header of the request, ours gets the same as a subset hint.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from gateway.commands.envoy.fields import Message, extension, socket
from gateway.commands.envoy.wanted import Address, Mode
from tests.envoy.lab import SUBSET, Front, Lab, lab, manager
from tests.envoy.test_modes import settled
from tests.support.chat import chat

pytestmark = pytest.mark.asyncio(loop_scope="module")

PODS = ("127.0.0.11", "127.0.0.12", "127.0.0.13")
PORTS = (13000, 13002, 13004)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def pods(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Lab]:
    """Three pods with three ports each."""
    at = [(pod, port) for pod in PODS for port in PORTS]
    async with lab(tmp_path_factory.mktemp("pods"), at=at, simulator={"answer_tokens": 2}) as made:
        yield made


async def hundred(made: Lab, front: Front, selection: Sequence[str]) -> set[str]:
    """The pods that answered a hundred requests, ten at a time."""
    before, gate = made.served(), asyncio.Semaphore(10)

    async def one(number: int) -> None:
        async with gate:
            answer = await front.post(chat(group=number, words=20), **{SUBSET: ",".join(selection)})
            assert answer.status_code == 200, answer.text

    await asyncio.gather(*(one(number) for number in range(100)))
    return {address for address, now, then in zip(made.addresses, made.served(), before, strict=True) if now > then}


@pytest.mark.parametrize("count", [1, 2, 3])
async def test_gateway_following_epp_routing(count, pods: Lab) -> None:
    front = await pods.envoy(Mode.FULL)
    found = await hundred(pods, front, [f"{pod}:{PORTS[0]}" for pod in PODS[:count]])
    assert found <= {f"{pod}:{PORTS[0]}" for pod in PODS[:count]}


@pytest.mark.parametrize(
    "selection",
    [(PODS[1],), (PODS[0], f"{PODS[2]}:{PORTS[1]}"), (PODS[0], *(f"{PODS[1]}:{port}" for port in PORTS[1:]), PODS[2])],
    ids=["a pod", "a pod and one port", "all but one port"],
)
async def test_gateway_following_epp_routing_with_data_parallelism(selection, pods: Lab) -> None:
    front = await pods.envoy(Mode.ENDS)
    allowed = {f"{pod}:{port}" for pod in PODS for port in PORTS if {pod, f"{pod}:{port}"} & set(selection)}
    assert await hundred(pods, front, selection) <= allowed


def tell_who_served(made: Message) -> None:
    """As the protocol has it, in place of Envoy's attributes."""
    [engines] = [one for one in made["static_resources"]["clusters"] if one["name"] == "engines"]
    [policy] = engines["load_balancing_policy"]["policies"]
    served = {"key": "envoy.lb", "path": [{"key": "x-gateway-destination-endpoint-served"}]}
    policy["typed_extension_config"]["typed_config"]["selected_host_key"] = served
    [asked] = [one for one in manager(made)["http_filters"] if one["name"] == "envoy.filters.http.ext_proc"]
    asked["typed_config"]["response_attributes"] = []


async def test_gateway_destination_endpoint_served(pods: Lab) -> None:
    front = await pods.envoy(Mode.ENDS, change=tell_who_served)
    first, second = pods.addresses[:2]
    for address in (first, second):
        answer = await front.post(chat(group=1), **{SUBSET: address})
        decision = await settled(pods, answer)
        assert decision["plan"]["decode"] == address


async def test_epp_unavailable_fail_open(folder: Path) -> None:
    async with lab(folder, at=[(pod, PORTS[0] + 100) for pod in PODS]) as made:
        front = await made.envoy(Mode.FULL)
        one = made.addresses[:1]
        assert await hundred(made, front, one) == set(one)
        await made.kill_picker()
        await front.picker_is(False)
        assert await hundred(made, front, one) == set(made.addresses), "of any pod"


async def test_gateway_weighted_across_two_inference_pools(folder: Path) -> None:
    """70 to 30, each request to its own pool's picker; also HTTPRouteMultipleRulesDifferentPools."""
    (folder / "other").mkdir()
    async with lab(folder) as made, lab(folder / "other") as other:

        def both(document: Message) -> None:
            _add_pool(document, other)

        front = await made.envoy(Mode.ENDS, change=both)
        await asyncio.gather(*(front.post(chat(group=number, words=20)) for number in range(200)))
        mine, others = sum(made.served()), sum(other.served())
        assert mine + others == 200
        assert 100 <= mine <= 175, "140 are expected"
        for one, count in ((made, mine), (other, others)):
            assert await one.total('kvgate_requests_total{model="sim"') == count
            assert len(await one.decisions()) == count


def _add_pool(document: Message, other: Lab) -> None:
    """A second pool of engines, with a picker of its own, gets three requests in ten."""
    clusters = document["static_resources"]["clusters"]
    renamed: dict[str, Any] = {}
    for cluster in [dict(one) for one in clusters]:
        name = cluster["name"] + "-b"
        at = other.addresses if cluster["name"] == "engines" else [f"127.0.0.1:{other.port}"]
        hosts = [{"endpoint": {"address": socket(Address.parse(one))}} for one in at]
        cluster["load_assignment"] = {"cluster_name": name, "endpoints": [{"lb_endpoints": hosts}]}
        cluster["name"] = name
        clusters.append(cluster)
        renamed[name] = cluster
    asks = {"grpc_service": {"envoy_grpc": {"cluster_name": "picker-b", "authority": "picker-b"}}}
    per_route = extension(
        "envoy.filters.http.ext_proc",
        "envoy.extensions.filters.http.ext_proc.v3.ExtProcPerRoute",
        overrides=asks,
    )["typed_config"]
    for one in manager(document)["route_config"]["virtual_hosts"][0]["routes"]:
        if "route" in one:
            route = one["route"] = dict(one["route"])
            del route["cluster"]
            route["weighted_clusters"] = {
                "clusters": [
                    {"name": "engines", "weight": 70},
                    {
                        "name": "engines-b",
                        "weight": 30,
                        "typed_per_filter_config": {"envoy.filters.http.ext_proc": per_route},
                    },
                ]
            }
