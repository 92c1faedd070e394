"""Data-parallel ranks behind one URL, and how many there are while it runs."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import pytest

from tests.simulator.conftest import Running, Start
from tests.support.wait import eventually


async def resize(running: Running, ranks: object) -> int:
    return (await running.client.post("/simulator/ranks", json={"ranks": ranks})).status_code


async def on(running: Running, rank: int) -> int:
    body = {"prompt": "x" * 40, "max_tokens": 1}
    headers = {"X-data-parallel-rank": str(rank)}
    return (await running.client.post("/v1/completions", json=body, headers=headers)).status_code


async def ports(running: Running) -> list[int]:
    sources = (await running.client.get("/kv_event_sources")).json()
    return [int(sources[str(rank)]["endpoint"].rpartition(":")[2]) for rank in range(len(sources))]


async def test_each_has_its_metrics_its_events_and_its_requests(start: Start) -> None:
    running = await start(ranks=3)
    assert [await on(running, rank) for rank in (2, 2, 0, 3, -1)] == [200, 200, 200, 400, 400]
    for rank, queries in enumerate((40, 0, 80)):
        assert await running.metric("vllm:prefix_cache_queries_total", engine=str(rank)) == queries
    first = (await ports(running))[0]
    assert await ports(running) == [first, first + 1, first + 2]


async def test_more_and_fewer_while_it_runs(start: Start) -> None:
    running = await start(ranks=2)
    before = await ports(running)
    assert await resize(running, 4) == 200
    assert len(set(await ports(running))) == 4
    assert (await ports(running))[:2] == before
    assert await on(running, 3) == 200
    assert await running.metric("vllm:prefix_cache_queries_total", engine="3") == 40
    assert [connector.name[-4:] for connector in running.server.service.connectors] == ["_dp0", "_dp1", "_dp2", "_dp3"]
    assert await resize(running, 1) == 200
    assert await ports(running) == before[:1]
    assert [await on(running, rank) for rank in (0, 1)] == [200, 400]
    assert await resize(running, 2) == 200
    assert await on(running, 1) == 200
    assert await running.metric("vllm:prefix_cache_queries_total", engine="1") == 40, "it is a new one"


async def test_a_taken_port_is_passed_over_where_any_will_do(start: Start) -> None:
    running = await start()
    [port] = await ports(running)
    with socket.socket() as taken:
        with contextlib.suppress(OSError):  # somebody has it already: as good
            taken.bind(("127.0.0.1", port + 1))
        assert await resize(running, 2) == 200
        assert (await ports(running))[1] != port + 1
        assert await on(running, 1) == 200


async def test_busy_ranks_stay(start: Start) -> None:
    running = await start(ranks=2, step_seconds=0.01)
    body = {"prompt": "x", "max_tokens": 10_000, "ignore_eos": True}
    sent = asyncio.create_task(running.client.post("/v1/completions", json=body, headers={"X-data-parallel-rank": "1"}))
    await eventually(lambda: running.server.running == 1, "it runs")
    assert await resize(running, 1) == 409
    assert len(await ports(running)) == 2
    sent.cancel()


@pytest.mark.parametrize("ranks", [0, -1, "2", None])
async def test_no_number_of_ranks(start: Start, ranks: object) -> None:
    assert await resize(await start(), ranks) == 400
