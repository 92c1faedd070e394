"""Covers: gateway/discovery/kubernetes/mirror.py, gateway/discovery/kubernetes/api.py.

What a mirror must live through with any API server: these run against a real one, too (``make test-kubernetes``).
"""

from __future__ import annotations

import asyncio

import pytest

from gateway.discovery.kubernetes import mirror as mirror_module
from tests.support.kubernetes import PODS, Cluster
from tests.support.mirrored import mirrored, running
from tests.support.wait import eventually


async def test_it_sees_what_is_there_and_what_comes_changes_and_goes(cluster: Cluster) -> None:
    await cluster.pod("a")
    seen = mirrored(cluster)
    async with running(seen.mirror):
        await seen.shows("a")
        await cluster.pod("b")
        await seen.shows("a", "b")
        await cluster.call("PATCH", f"{PODS}/a", {"metadata": {"labels": {"stage": "2"}}})
        await eventually(lambda: seen.mirror.objects["a"].stage == "2")
        await cluster.delete(f"{PODS}/a")
        await seen.shows("b")
    assert seen.losses == []


async def test_a_pod_whose_labels_match_no_more_is_gone_and_comes_back_with_them(cluster: Cluster) -> None:
    seen = mirrored(cluster)
    async with running(seen.mirror):
        await cluster.pod("a")
        await cluster.pod("other", app="web")
        await seen.shows("a")
        await cluster.call("PATCH", f"{PODS}/a", {"metadata": {"labels": {"app": "web"}}})
        await seen.shows()
        await cluster.call("PATCH", f"{PODS}/a", {"metadata": {"labels": {"app": "vllm"}}})
        await seen.shows("a")


async def test_a_change_that_does_not_matter_is_not_told(cluster: Cluster) -> None:
    await cluster.pod("a")
    seen = mirrored(cluster)
    async with running(seen.mirror):
        await seen.shows("a")
        told = len(seen.told)
        await cluster.call("PATCH", f"{PODS}/a", {"metadata": {"annotations": {"beat": "1"}}})
        await cluster.pod("b")
        await seen.shows("a", "b")
        assert seen.told[told:] == [["a", "b"]]


async def test_a_pod_made_again_under_its_name_is_another_one(cluster: Cluster) -> None:
    first = await cluster.pod("a")
    seen = mirrored(cluster)
    async with running(seen.mirror):
        await seen.shows("a")
        await cluster.delete(f"{PODS}/a")
        second = await cluster.pod("a")
        await eventually(
            lambda: "a" in seen.mirror.objects and seen.mirror.objects["a"].uid != first["metadata"]["uid"]
        )
        assert seen.mirror.objects["a"].uid == second["metadata"]["uid"]


async def test_nothing_is_missed_while_the_server_restarts(cluster: Cluster) -> None:
    await cluster.pod("a")
    seen = mirrored(cluster)
    async with running(seen.mirror):
        await seen.shows("a")
        await cluster.restart()
        await cluster.delete(f"{PODS}/a")
        await cluster.pod("b")
        await seen.shows("b")


async def test_what_was_deleted_while_nobody_watched_is_gone_although_history_is(cluster: Cluster) -> None:
    for name in ("a", "b", "c"):
        await cluster.pod(name)
    seen = mirrored(cluster)
    async with running(seen.mirror):
        await seen.shows("a", "b", "c")
    await cluster.delete(f"{PODS}/b")
    await cluster.pod("d")
    await cluster.forget()
    async with running(seen.mirror):
        await seen.shows("a", "c", "d")
        await cluster.delete(f"{PODS}/a")
        await seen.shows("c", "d")


async def test_a_list_of_several_pages_is_one_list(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror_module, "PAGE", 5)
    names = [f"pod-{number:02}" for number in range(12)]
    await asyncio.gather(*(cluster.pod(name) for name in names))
    seen = mirrored(cluster)
    async with running(seen.mirror):
        await seen.shows(*names)
        assert seen.told == [names]


async def test_a_deleted_pod_with_a_finalizer_stays_until_it_has_none(cluster: Cluster) -> None:
    await cluster.pod("a")
    await cluster.call("PATCH", f"{PODS}/a", {"metadata": {"finalizers": ["kvgate.test/wait"]}})
    seen = mirrored(cluster)
    async with running(seen.mirror):
        await seen.shows("a")
        await cluster.delete(f"{PODS}/a")
        await cluster.pod("b")
        await seen.shows("a", "b")
        await cluster.call("PATCH", f"{PODS}/a", {"metadata": {"finalizers": None}})
        await seen.shows("b")
