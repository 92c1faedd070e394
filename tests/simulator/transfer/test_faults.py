"""Faults of the legs of a split request, as a gateway meets them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.simulator.transfer.conftest import CHAT, PREFILL, MakePair, Pair, body, plain
from tests.support.wait import eventually


@pytest.fixture
async def two(pair: MakePair) -> Pair:
    return await pair(kv_lease_seconds=0.5)


async def spoiled(two: Pair, kind: str, **options: Any) -> Any:
    """A prefill leg's parameters under a fault that is set over HTTP; the next one's are whole."""
    fault = {"kind": kind, "times": 1, **options}
    assert (await two.prefill.client.post("/simulator/faults", json=fault)).json() == {"faults": 1}
    await plain(two.prefill, body())  # a request of another kind does not meet it
    params = await two.begin(body())
    assert len(await two.begin(body())) == 14
    return params


async def test_no_parameters(two: Pair) -> None:
    assert await spoiled(two, "no-params") is None


async def test_fewer_parameters(two: Pair) -> None:
    params = await spoiled(two, "less-params", fields=["remote_host", "tp_size"])
    assert (len(params), "remote_host" in params, "tp_size" in params) == (12, False, False)


async def test_parameters_of_other_types(two: Pair) -> None:
    assert (await spoiled(two, "wrong-params", fields=["remote_port"]))["remote_port"] == "wrong"
    params = await spoiled(two, "wrong-params")
    assert (params["remote_engine_id"], params["remote_block_ids"], params["do_remote_prefill"]) == (
        7,
        "wrong",
        "wrong",
    )


async def test_an_answer_that_is_no_json(two: Pair) -> None:
    two.prefill.server.faults.inject("status", leg="prefill", status=200, body="<html>", times=1)
    leg = {**body(), "kv_transfer_params": PREFILL}
    assert (await plain(two.prefill, body()))[0]["finish_reason"] == "length"
    answer = await two.prefill.client.post(CHAT, json=leg)
    assert (answer.status_code, answer.text) == (200, "<html>")


async def test_kv_that_never_comes(two: Pair) -> None:
    two.decode.server.faults.inject("kv-hang", times=1)
    params = await two.begin(body())
    leg = asyncio.create_task(two.end({**body(), "stream": True}, params))
    engine = two.decode.server.service.engines[0]
    await eventually(lambda: engine.fetching["in_progress"] == 1, "it hangs")
    await asyncio.wait([leg], timeout=0.7)
    assert two.prefill.server.cache.usage > 0, "heartbeats keep its blocks"
    leg.cancel()
    await eventually(lambda: two.decode.server.aborted == 1, "its client gives up")
    await eventually(lambda: two.prefill.server.cache.usage == 0, "the lease ends")


@pytest.mark.parametrize(("policy", "status"), [("fail", 500), ("recompute", 200)])
async def test_kv_that_cannot_be_loaded(pair: MakePair, policy: str, status: int) -> None:
    two = await pair(kv_load_failure_policy=policy)
    two.decode.server.faults.inject("kv-fail", times=1)
    params = await two.begin(body())
    assert (await plain(two.decode, body("plain")))[0]["finish_reason"] == "length"
    assert (await two.end(body(), params)).status_code == status
    assert await two.decode.metric("vllm:nixl_num_failed_transfers_total") == 1


@pytest.mark.parametrize("leg", ["prefill", "decode"])
async def test_sglangs_legs_are_told_by_the_engines_role(pair: MakePair, leg: str) -> None:
    two = await pair({"kv_role": "producer"}, {"kv_role": "consumer"}, connector="sglang")
    asked = {**body(), "bootstrap_host": "127.0.0.1", "bootstrap_port": 1, "bootstrap_room": 1}
    for running in (two.prefill, two.decode):
        running.server.faults.inject("admission", leg=leg, times=1)
    running = two.prefill if leg == "prefill" else two.decode
    assert (await running.client.post(CHAT, json=asked)).status_code == 503
