"""NIXL push: the same legs as with pull, and what is different where something is missing."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from tests.simulator.conftest import Running
from tests.simulator.transfer.conftest import MakePair, Pair, body, plain
from tests.support.wait import eventually

NAMED = {"X-Request-Id": "one"}


@pytest.fixture
async def two(pair: MakePair) -> Pair:
    return await pair(connector="nixl-push")


async def waits(running: Running) -> None:
    engine = running.server.service.engines[0]
    await eventually(lambda: engine.fetching["in_progress"] == 1, "it waits for KV")


async def test_the_answer_names_the_mode(two: Pair) -> None:
    params = await two.begin(body(), **NAMED)
    assert params["transfer_mode"] == "push"
    assert "remote_blocks_expiry_time" not in params
    assert list(params)[-3:] == ["remote_num_tokens", "transfer_mode", "remote_prefill_cached_tokens"]


@pytest.mark.parametrize("blocks", [True, False])
async def test_the_kv_is_written_into_the_other_engine(two: Pair, blocks: bool) -> None:
    params = await two.begin(body(), **NAMED)
    answer = await two.end(body(), params if blocks else {**params, "remote_block_ids": None}, **NAMED)
    assert answer.json()["choices"] == await plain(two.prefill, body())
    assert await two.decode.metric("vllm:nixl_bytes_transferred_sum") == 7 * 16 * 2048
    assert await two.decode.metric("vllm:prompt_tokens_by_source_total", source="external_kv_transfer") == 109
    await two.settled()
    assert await two.prefill.metric("vllm:nixl_num_kv_expired_reqs_total") == 0


async def test_many_at_once(two: Pair) -> None:
    async def split(letter: str) -> Any:
        asked, named = body(letter * 40, 3), {"X-Request-Id": letter}
        return (await two.end(asked, await two.begin(asked, **named), **named)).json()["choices"]

    answers = await asyncio.gather(*(split(letter) for letter in "abcdefgh"))
    for letter, choices in zip("abcdefgh", answers, strict=True):
        assert choices == await plain(two.prefill, body(letter * 40, 3))
    await two.settled()


async def test_the_decode_leg_may_be_registered_first(pair: MakePair) -> None:
    """Who knows the prefill engine's address already need not wait for its answer."""
    two = await pair(connector="nixl-push")
    known = await two.begin(body("first"), **NAMED)
    await two.end(body("first"), known, **NAMED)
    leg = asyncio.create_task(two.end(body(), known, **{"X-Request-Id": "two"}))
    await waits(two.decode)
    await two.begin(body(), **{"X-Request-Id": "two"})
    assert (await leg).json()["choices"] == await plain(two.prefill, body())
    await two.settled()


@pytest.mark.parametrize("named", [{}, {"X-Request-Id": "another"}])
async def test_legs_of_unlike_names_never_meet(pair: MakePair, named: dict[str, str]) -> None:
    two = await pair(connector="nixl-push", kv_lease_seconds=0.1)
    params = await two.begin(body(), **NAMED)
    leg = asyncio.create_task(two.end({**body(), "stream": True}, params, **named))
    await waits(two.decode)
    assert two.decode.server.service.engines[0].fetching["in_progress"] == 1
    leg.cancel()
    await eventually(lambda: two.decode.server.aborted == 1, "its client gives up")
    assert two.decode.server.cache.usage > 0, "somebody may still write there"


async def test_a_dead_prefill_engine_fails_the_handshake(pair: MakePair) -> None:
    two = await pair(connector="nixl-push", handshake_timeout=0.05)
    params = await two.begin(body(), **NAMED)
    await two.prefill.server.kill()
    assert (await two.end(body(), params, **NAMED)).status_code == 500
    assert two.decode.server.cache.usage == 0


@pytest.mark.parametrize("connectors", [("nixl", "nixl-push"), ("nixl-push", "nixl")])
async def test_push_and_pull_do_not_fit(pair: MakePair, connectors: tuple[str, str]) -> None:
    two = await pair({"connector": connectors[0]}, {"connector": connectors[1]}, kv_lease_seconds=0.05)
    assert (await two.end(body(), await two.begin(body(), **NAMED), **NAMED)).status_code == 500
    await two.settled()


async def test_a_refused_leg_tells_nobody(pair: MakePair) -> None:
    two = await pair(connector="nixl-push", kv_lease_seconds=0.05)
    params = await two.begin(body(), **NAMED)
    assert (await two.end({**body(), "model": "nope"}, params, **NAMED)).status_code == 404
    await two.settled()
    assert await two.prefill.metric("vllm:nixl_num_kv_expired_reqs_total") == 1


@pytest.mark.parametrize("missing", ["remote_engine_id", "remote_request_id", "remote_host", "remote_port", "tp_size"])
async def test_without_an_address_it_dies_at_once(two: Pair, missing: str) -> None:
    params = await two.begin(body(), **NAMED)
    del params[missing]
    with pytest.raises(httpx.RemoteProtocolError):
        await two.end(body(), params, **NAMED)
    assert two.decode.server.died.is_set()


async def test_somebody_elses_prompt_makes_another_answer(two: Pair) -> None:
    params = await two.begin(body("one"), **NAMED)
    answer = await two.end(body("two"), params, **NAMED)
    assert answer.json()["choices"] != await plain(two.prefill, body("two"))
