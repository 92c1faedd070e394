"""What a server may do wrong, by the simulated one's faults: the mirror shows what is there in the end."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from gateway.core.clock import ManualClock
from gateway.discovery.kubernetes import api as api_module
from gateway.discovery.kubernetes import mirror as mirror_module
from gateway.discovery.kubernetes.api import Api, ApiError
from simulator.kubernetes.server import ApiServer
from simulator.kubernetes.store import Key
from tests.support.kubernetes import PODS, Cluster, connected, kubeconfig
from tests.support.mirrored import mirrored, running
from tests.support.wait import eventually


@pytest.mark.parametrize("as_event", [True, False])
async def test_a_forgotten_version_is_a_new_list(server: ApiServer, cluster: Cluster, as_event: bool) -> None:
    server.faults.gone_as_event = as_event
    await cluster.pod("a")
    await cluster.pod("b")
    seen = mirrored(cluster)
    async with running(seen.mirror):
        await seen.shows("a", "b")
    await cluster.delete(f"{PODS}/a")
    server.store.compact()
    async with running(seen.mirror):
        await seen.shows("b")
    assert (server.counts["LIST"], seen.losses) == (2, [])


async def test_a_cut_watch_goes_on_from_where_it_was(server: ApiServer, cluster: Cluster) -> None:
    await cluster.pod("a")
    seen = mirrored(cluster)
    async with running(seen.mirror):
        await eventually(lambda: server.watches == 1)
        server.cut()
        await cluster.pod("b")
        await seen.shows("a", "b")
        await eventually(lambda: server.counts["WATCH"] == 2)
    assert (server.counts["LIST"], seen.losses) == (1, [])


@pytest.mark.parametrize(("lasts", "pauses"), [(2.0, [0.02, 0.02, 0.02]), (0.5, [0.02, 0.04, 0.08])])
async def test_watches_that_end_at_once_are_made_anew_less_and_less_often(
    server: ApiServer, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, lasts: float, pauses: list[float]
) -> None:
    """``lasts``: seconds of each."""
    monkeypatch.setattr(mirror_module, "FIRST_PAUSE", 0.01)
    clock = ManualClock()
    seen = mirrored(cluster, clock=clock)
    had = []
    async with running(seen.mirror):
        for number in range(3):
            await eventually(lambda number=number: server.counts.get("WATCH") == number + 1)
            await eventually(lambda: seen.mirror._accepted < math.inf)
            clock.now += lasts
            server.cut()
            await eventually(lambda number=number: server.counts.get("WATCH") == number + 2)
            had.append(seen.mirror._pause)
    assert had == pytest.approx(pauses)


async def test_a_silent_watch_is_taken_for_dead(server: ApiServer, cluster: Cluster) -> None:
    await cluster.pod("a")
    seen = mirrored(cluster, silence=0.3)
    async with running(seen.mirror):
        await eventually(lambda: server.watches == 1)
        server.faults.silent = True
        await cluster.delete(f"{PODS}/a")
        await eventually(lambda: server.counts["WATCH"] > 1)
        assert seen.names() == ["a"]
        server.faults.silent = False
        await seen.shows()
    assert server.counts["LIST"] == 1


async def test_a_watch_that_lasts_as_long_as_it_may_goes_on(
    server: ApiServer, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror_module, "WATCH_SECONDS", (0, 0))
    seen = mirrored(cluster)
    async with running(seen.mirror):
        await eventually(lambda: server.counts.get("WATCH", 0) >= 2)
        await cluster.pod("a")
        await seen.shows("a")
    assert (server.counts["LIST"], seen.losses) == (1, [])


async def test_a_deletion_that_no_watch_told_is_seen_by_the_next_list(server: ApiServer, cluster: Cluster) -> None:
    server.faults.losing = True
    await cluster.pod("a")
    await cluster.pod("b")
    seen = mirrored(cluster)
    async with running(seen.mirror):
        await seen.shows("a", "b")
        await eventually(lambda: server.watches == 1)
        await cluster.delete(f"{PODS}/a")
        await cluster.pod("c")
        await seen.shows("a", "b", "c")
        await server.stop()
        server.store.create(Key("api/v1/pods", "elsewhere", "d"), {})
        server.store.compact()
        await server.start()
        await seen.shows("b", "c")


async def test_bookmarks_keep_the_place_while_others_change(cluster: Cluster, server: ApiServer) -> None:
    """History holds 1,000 changes: without bookmarks this watch would go on from one that is forgotten."""
    await cluster.pod("a")
    seen = mirrored(cluster)
    async with running(seen.mirror):
        await eventually(lambda: server.watches == 1)
        version = seen.mirror._version
        await cluster.pod("other", app="web")
        await eventually(lambda: seen.mirror._version != version)
        server.store.compact()
        server.cut()
        await cluster.pod("b")
        await seen.shows("a", "b")
    assert server.counts["LIST"] == 1


async def test_a_server_that_fails_is_told_and_then_that_it_is_heard_again(server: ApiServer, cluster: Cluster) -> None:
    server.faults.statuses = [500]
    seen = mirrored(cluster)
    async with running(seen.mirror):
        await seen.shows()
        assert len(seen.losses) == 1
        assert "answered 500: injected by a test" in seen.losses[0]
        assert seen.told == [[]]
        await eventually(lambda: server.watches == 1)
        server.faults.statuses = [503]
        server.cut()
        await eventually(lambda: len(seen.told) == 2)
        assert "answered 503" in seen.losses[1]


async def test_a_server_may_say_how_long_to_wait(tmp_path: Path) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.json_response({"message": "too many requests"}, status=429, headers={"retry-after": "7"})

    async with web_server(answer) as url, connected(url, tmp_path, nothing, nothing) as cluster:
        with pytest.raises(ApiError, match="answered 429: too many requests") as caught:
            async with Api(cluster.credentials).connect() as connection:
                await connection.page(PODS, {})
    assert caught.value.retry_after == 7.0


async def test_a_permission_that_is_missing_is_said_in_words(server: ApiServer, cluster: Cluster) -> None:
    server.faults.statuses = [403, 404]
    seen = mirrored(cluster)
    async with running(seen.mirror):
        await seen.shows()
    assert "we lack a permission (403)" in seen.losses[0]
    assert f"/api/v1/namespaces/{cluster.namespace}/pods is not known to the server (404)" in seen.losses[1]


async def test_a_renewed_token_is_read_again(server: ApiServer, cluster: Cluster) -> None:
    server.tokens = {"new"}
    text = kubeconfig(server.url, cluster.namespace, "old")
    cluster.kubeconfig.write_text(text)
    seen = mirrored(cluster)
    async with running(seen.mirror):
        await eventually(lambda: seen.losses)
        assert "does not accept our credentials (401)" in seen.losses[0]
        cluster.kubeconfig.write_text(text.replace("old", "new"))
        await seen.shows()


async def test_a_kubeconfig_that_goes_is_told_and_the_watch_goes_on(server: ApiServer, cluster: Cluster) -> None:
    seen = mirrored(cluster)
    async with running(seen.mirror):
        await eventually(lambda: server.watches == 1)
        cluster.kubeconfig.rename(cluster.kubeconfig.with_suffix(".away"))
        await cluster.pod("a")
        await seen.shows("a")
        server.cut()
        await eventually(lambda: seen.losses)
        assert "cannot be read: No such file or directory" in seen.losses[0]
        cluster.kubeconfig.with_suffix(".away").rename(cluster.kubeconfig)
        await cluster.pod("b")
        await seen.shows("a", "b")


async def test_pages_that_are_slow_or_forgotten_end_in_a_whole_list(
    server: ApiServer, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror_module, "PAGE", 2)
    for name in ("a", "b", "c"):
        await cluster.pod(name)
    server.faults.forgetting_pages, server.faults.slow_page = True, 0.05
    seen = mirrored(cluster)
    async with running(seen.mirror):
        await eventually(lambda: server.counts.get("LIST", 0) >= 4)
        assert seen.told == []
        server.faults.forgetting_pages = False
        await eventually(lambda: server.counts["LIST"] % 2 == 0)
        await seen.shows("a", "b", "c")
    assert seen.losses == []


async def test_an_event_in_two_parts_is_one_event(server: ApiServer, cluster: Cluster) -> None:
    server.faults.torn = True
    seen = mirrored(cluster)
    async with running(seen.mirror):
        await eventually(lambda: server.watches == 1)
        for name in ("a", "b", "c"):
            await cluster.pod(name)
        await seen.shows("a", "b", "c")
    assert server.counts["LIST"] == 1


async def nothing() -> None:
    """This server is not restarted."""


@asynccontextmanager
async def web_server(answer: Callable[[web.Request], Awaitable[web.Response]]) -> AsyncIterator[str]:
    """One that answers everything so."""
    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


LIST = {"metadata": {"resourceVersion": "1"}, "items": []}
POD = {"metadata": {"name": "a", "uid": "1", "resourceVersion": "3"}}


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (b"no JSON\n", "cannot be read"),
        (b'{"type": "ADDED", "object": {"metadata": {}}}\n', "cannot be read"),
        (b'{"type": "ERROR", "object": {"code": 500, "message": "etcd"}}\n', "500 etcd"),
        (b"x" * 3000, "a line of the watch has more than 2000 bytes"),
    ],
)
async def test_a_watch_of_rubbish_ends_and_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: bytes, said: str
) -> None:
    """What came before it counts."""
    monkeypatch.setattr(api_module, "MAX_LINE", 2000)

    async def answer(request: web.Request) -> web.Response:
        good = json.dumps({"type": "ADDED", "object": POD}).encode() + b"\n"
        return web.json_response(LIST) if "watch" not in request.query else web.Response(body=good + lines)

    async with web_server(answer) as url, connected(url, tmp_path, nothing, nothing) as cluster:
        seen = mirrored(cluster)
        async with running(seen.mirror):
            await eventually(lambda: seen.losses)
            assert said in seen.losses[0]
            assert ["a"] in seen.told


@pytest.mark.parametrize(("body", "said"), [(b"[]", "cannot be read"), (b"x" * 3000, "has more than 2000 bytes")])
async def test_a_list_of_rubbish_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: bytes, said: str
) -> None:
    monkeypatch.setattr(api_module, "MAX_PAGE", 2000)

    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=body)

    async with web_server(answer) as url, connected(url, tmp_path, nothing, nothing) as cluster:
        seen = mirrored(cluster)
        async with running(seen.mirror):
            await eventually(lambda: seen.losses)
    assert said in seen.losses[0]
