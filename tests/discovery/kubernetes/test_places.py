from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.discovery.kubernetes import places as places_module
from gateway.discovery.kubernetes.places import Place, Places
from gateway.discovery.settings import DiscoverSettings
from simulator.kubernetes.server import ApiServer
from simulator.kubernetes.store import Key
from tests.support.kubernetes import Cluster, pod, status
from tests.support.kubernetes_followed import following

ANY = DiscoverSettings(file="x")


def named(places: Places, *found: Place) -> list[str]:
    return [f"{endpoint.name} {endpoint.url}" for endpoint in places.endpoints(found)[0]]


async def test_five_hundred_pods_are_one_change(server: ApiServer, cluster: Cluster) -> None:
    for number in range(500):
        made = {**pod({"app": "vllm"}), **status(f"10.0.{number // 250}.{number % 250 + 1}")}
        server.store.create(Key("api/v1/pods", cluster.namespace, f"pod-{number:03}"), made)
    async with following(cluster, selector="app=vllm", ports=[8000]) as seen:
        await seen.shows(*(f"pod-{n:03}:8000 http://10.0.{n // 250}.{n % 250 + 1}:8000" for n in range(500)))
    assert len(seen.lists) == 1


def test_of_two_pods_with_one_address_the_younger_one_has_it() -> None:
    old = Place("a", "1", "10.0.0.1", [8000], made="2026-11-28T10:00:00Z")
    new = Place("b", "2", "10.0.0.1", [8000], made="2026-11-28T10:00:01Z")
    assert named(Places(ANY), new, old) == ["b:8000 http://10.0.0.1:8000"]


def test_pods_on_their_hosts_network_share_its_address_each_with_its_ports() -> None:
    one = Place("a", "1", "10.0.0.1", [8000], made="2026-11-28T10:00:00Z")
    two = Place("b", "2", "10.0.0.1", [8001], made="2026-11-28T10:00:01Z")
    three = Place("c", "3", "10.0.0.1", [8001, 8002], made="2026-11-28T10:00:02Z")
    places = Places(ANY)
    assert named(places, two, one) == ["a:8000 http://10.0.0.1:8000", "b:8001 http://10.0.0.1:8001"]
    assert named(places, replace(two, ports=[8001, 8003]), three) == [
        "b:8003 http://10.0.0.1:8003",
        "c:8001 http://10.0.0.1:8001",
        "c:8002 http://10.0.0.1:8002",
    ]


def test_a_name_stays_as_long_as_its_pod() -> None:
    places = Places(ANY)
    first, second, third = (Place("a-0", f"{uid}0000000000", "10.0.0.1", [8000]) for uid in "123")
    assert named(places, first) == ["a-0:8000 http://10.0.0.1:8000"]
    assert named(places) == []
    for _ in range(2):
        assert named(places, second) == ["a-0.20000000:8000 http://10.0.0.1:8000"]
    assert named(places, third) == ["a-0.30000000:8000 http://10.0.0.1:8000"]
    elsewhere = Place("a-0", "4", "10.0.0.2", [8000])
    assert named(places, elsewhere) == ["a-0:8000 http://10.0.0.2:8000"]


def test_pods_that_are_long_gone_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places_module, "REMEMBERED", 2)
    places = Places(ANY)
    for number in range(5):
        named(places, Place(f"p{number}", str(number), f"10.0.0.{number + 1}", [8000]))
    assert len(places._known) == 2


def test_an_address_that_is_none_is_left_out_and_named() -> None:
    found, wrong = Places(ANY).endpoints([Place("a", "1", "not an address", [8000])])
    assert found == []
    assert wrong[0].startswith("pod a, port 8000: url: 'http://not an address:8000'")
