"""Mooncake between two engines: legs in either order, the bootstrap server, roles, and what goes wrong."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import httpx
import pytest

from tests.simulator.conftest import Running, Start
from tests.simulator.transfer.conftest import CHAT, MakePair, Pair, body, plain
from tests.support.wait import eventually

TRANSFERS = itertools.count()


async def engine_ids(running: Running) -> list[str]:
    """What a gateway learns from the bootstrap server, rank by rank."""
    async with httpx.AsyncClient(verify=False) as client:
        ranks = (await client.get(f"http://{running.server.bootstrap}/query")).json()
    return [ranks[str(rank)]["engine_id"] for rank in range(len(ranks))]


async def params(two: Pair, rank: int = 0) -> tuple[dict[str, Any], dict[str, Any]]:
    """Both legs' parameters."""
    transfer = {"transfer_id": f"t-{next(TRANSFERS)}"}
    address = f"http://{two.prefill.server.bootstrap}"
    remote = {"remote_engine_id": (await engine_ids(two.prefill))[rank], "remote_bootstrap_addr": address}
    return (
        {"do_remote_decode": True, "do_remote_prefill": False, **transfer},
        {"do_remote_prefill": True, "do_remote_decode": False, **transfer, **remote},
    )


@pytest.fixture
async def two(pair: MakePair) -> Pair:
    return await mooncakes(pair)


async def mooncakes(pair: MakePair, **both: Any) -> Pair:
    settings: dict[str, Any] = {"connector": "mooncake", "pairing_timeout": 10, **both}
    prefill, decode = {"kv_role": "producer"}, {"kv_role": "consumer"}
    return await pair(prefill | settings.pop("prefill", {}), decode | settings.pop("decode", {}), **settings)


async def test_both_at_once(two: Pair) -> None:
    first, second = await params(two)
    asked = body()
    answers = await asyncio.gather(two.begin(asked, first), two.end(asked, second))
    assert answers[0] is None, "there is nothing to pass on"
    assert answers[1].json()["choices"] == await plain(two.prefill, asked)
    assert await two.decode.metric("vllm:prompt_tokens_by_source_total", source="external_kv_transfer") == 109
    assert await two.decode.metric("vllm:prompt_tokens_cached_by_source_total", source="p2p") == 109
    await two.settled()


async def test_the_prefill_leg_long_before(two: Pair) -> None:
    first, second = await params(two)
    await two.begin(body(), first)
    assert two.prefill.server.cache.usage > 0
    assert (await two.end(body(), second)).json()["choices"] == await plain(two.prefill, body())
    await two.settled()


async def test_the_decode_leg_long_before(two: Pair) -> None:
    first, second = await params(two)
    leg = asyncio.create_task(two.end({**body(), "stream": True}, second))
    await eventually(lambda: two.decode.server.service.engines[0].fetching["in_progress"], "it waits")
    assert await two.decode.metric("vllm:num_requests_kv_fetch_by_stage", stage="in_progress") == 1
    await two.begin(body(), first)
    assert (await leg).text.endswith("data: [DONE]\n\n")
    await two.settled()


async def test_the_bootstrap_server_says_who_is_there(pair: MakePair) -> None:
    two = await mooncakes(pair, prefill={"ranks": 2})
    async with httpx.AsyncClient(base_url=f"http://{two.prefill.server.bootstrap}", verify=False) as client:
        ranks = (await client.get("/query")).json()
        assert (await client.get("/else")).status_code == 404
    assert list(ranks) == ["0", "1"]
    for rank, entry in ranks.items():
        assert entry["engine_id"].endswith(f"_dp{rank}")
        assert entry["worker_addr"]["0"]["0"].startswith("tcp://127.0.0.1:")
    for rank in (0, 1):
        first, second = await params(two, rank)
        header = {"X-data-parallel-rank": str(rank)}
        _, answer = await asyncio.gather(two.begin(body(), first, **header), two.end(body(), second))
        assert answer.json()["choices"] == await plain(two.prefill, body())
    assert two.decode.server.bootstrap is None, "a consumer has none"
    await two.settled()


async def test_the_wrong_rank_never_comes(pair: MakePair) -> None:
    two = await mooncakes(pair, prefill={"ranks": 2}, pairing_timeout=0.2)
    first, second = await params(two, 1)
    _, answer = await asyncio.gather(two.begin(body(), first, **{"X-data-parallel-rank": "0"}), two.end(body(), second))
    assert answer.status_code == 500
    await two.settled()


async def test_what_stops_by_itself_is_not_sent(pair: MakePair) -> None:
    two = await mooncakes(pair, answer_tokens=1, pairing_timeout=0.2)
    first, second = await params(two)
    asked = {**body(), "ignore_eos": False}
    _, answer = await asyncio.gather(two.begin(asked, first), two.end(asked, second))
    assert answer.status_code == 500
    await two.settled()


@pytest.mark.parametrize(("policy", "status"), [("fail", 500), ("recompute", 200)])
async def test_a_prefill_leg_that_never_comes(pair: MakePair, policy: str, status: int) -> None:
    two = await mooncakes(pair, pairing_timeout=0.1, kv_load_failure_policy=policy)
    _, second = await params(two)
    assert (await two.end(body(), second)).status_code == status
    await two.settled()


async def test_a_decode_leg_that_never_comes(pair: MakePair) -> None:
    two = await mooncakes(pair, pairing_timeout=0.1)
    first, second = await params(two)
    await two.begin(body(), first)
    await two.settled()
    assert (await two.end(body(), second)).status_code == 500, "too late: nobody knows of it any more"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("remote_engine_id", "nobody"),
        ("remote_bootstrap_addr", "http://127.0.0.1:1"),
        ("remote_bootstrap_addr", "no address"),
        ("remote_bootstrap_addr", None),
    ],
)
async def test_not_the_engine_that_was_meant(pair: MakePair, field: str, value: Any) -> None:
    two = await mooncakes(pair, pairing_timeout=0.5)
    first, second = await params(two)
    _, answer = await asyncio.gather(two.begin(body(), first), two.end(body(), {**second, field: value}))
    assert answer.status_code == 500
    await two.settled()


async def test_a_dead_prefill_engine(pair: MakePair) -> None:
    two = await mooncakes(pair, pairing_timeout=1)
    first, second = await params(two)
    await asyncio.gather(two.begin(body(), first), two.end(body(), second))
    _, second = await params(two)
    await two.prefill.server.kill()
    assert (await two.end(body(), second)).status_code == 500, "its address is known, and nobody answers there"
    assert two.decode.server.cache.usage == 0


async def test_a_refused_or_abandoned_leg_frees_the_blocks(two: Pair) -> None:
    first, second = await params(two)
    await two.begin(body(), first)
    assert (await two.end({**body(), "model": "nope"}, second)).status_code == 404
    await two.settled()
    first, second = await params(two)
    leg = asyncio.create_task(two.end(body(), second))
    await eventually(lambda: two.decode.server.waiting == 1, "it waits")
    leg.cancel()
    await eventually(lambda: two.decode.server.aborted == 1, "it is aborted")
    await two.begin(body(), first)
    await two.settled()


async def test_somebody_elses_transfer_makes_another_answer(two: Pair) -> None:
    first, second = await params(two)
    _, answer = await asyncio.gather(two.begin(body("one"), first), two.end(body("two"), second))
    assert answer.status_code == 200
    assert answer.json()["choices"] != await plain(two.prefill, body("two"))


@pytest.mark.parametrize(("role", "leg"), [("producer", 1), ("consumer", 0)])
async def test_the_wrong_role_kills(start: Start, two: Pair, role: str, leg: int) -> None:
    running = await start(connector="mooncake", kv_role=role)
    with pytest.raises(httpx.RemoteProtocolError):
        await running.client.post(CHAT, json={**body(), "kv_transfer_params": (await params(two))[leg]})
    assert running.server.died.is_set()


async def test_without_a_transfer_id(two: Pair) -> None:
    assert await two.begin(body(), {"do_remote_decode": True}) is None
    await two.settled()
    leg = asyncio.create_task(two.end({**body(), "stream": True}, {"do_remote_prefill": True}))
    await eventually(lambda: two.decode.server.waiting == 1, "it hangs")
    leg.cancel()
    await eventually(lambda: two.decode.server.aborted == 1, "its client gives up")


async def test_without_an_address_a_refused_leg_kills(two: Pair) -> None:
    answer = await two.end({**body(), "model": "nope"}, {"do_remote_prefill": True, "transfer_id": "x"})
    assert answer.status_code == 404, "that still comes"
    await eventually(two.decode.server.died.is_set, "it is dead")


async def test_both_roles_in_one(pair: MakePair) -> None:
    two = await pair(connector="mooncake")
    first, second = await params(two)
    _, answer = await asyncio.gather(two.begin(body(), first), two.end(body(), second))
    assert answer.json()["choices"] == await plain(two.prefill, body())
