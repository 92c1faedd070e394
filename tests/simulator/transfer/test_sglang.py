"""SGLang between two engines: one body for both legs, which meet or wait for each other."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import httpx
import pytest

from simulator.settings import EngineSettings
from tests.simulator.conftest import Running
from tests.simulator.transfer.conftest import CHAT, MakePair, Pair, body
from tests.support.wait import eventually

ROOMS = itertools.count(2**62)


async def sglangs(pair: MakePair, **both: Any) -> Pair:
    settings: dict[str, Any] = {"connector": "sglang", "pairing_timeout": 10, **both}
    prefill, decode = {"kv_role": "producer"}, {"kv_role": "consumer"}
    return await pair(prefill | settings.pop("prefill", {}), decode, **settings)


@pytest.fixture
async def two(pair: MakePair) -> Pair:
    return await sglangs(pair)


def shared(two: Pair, asked: dict[str, Any]) -> dict[str, Any]:
    """The body that both legs get."""
    host, port = (two.prefill.server.bootstrap or ":0").split(":")
    return {**asked, "bootstrap_host": host, "bootstrap_port": int(port), "bootstrap_room": next(ROOMS)}


async def send(running: Running, asked: dict[str, Any], **headers: str) -> httpx.Response:
    return await running.client.post(CHAT, json=asked, headers=headers)


async def right(start: Any, asked: dict[str, Any]) -> Any:
    """What a plain engine answers."""
    return (await send(await start(connector="none"), asked)).json()["choices"]


async def both(two: Pair, asked: dict[str, Any], **headers: str) -> tuple[httpx.Response, httpx.Response]:
    return await asyncio.gather(send(two.prefill, asked, **headers), send(two.decode, asked))


@pytest.mark.parametrize("streamed", [False, True])
async def test_both_legs_have_the_same_body(two: Pair, start: Any, streamed: bool) -> None:
    asked = shared(two, body(stream=streamed))
    first, second = await both(two, asked)
    if streamed:
        assert first.text.endswith("data: [DONE]\n\n")
        assert second.text.count('"delta"') == 1 + 6
    else:
        assert (first.json()["usage"]["completion_tokens"], first.json()["kv_transfer_params"]) == (1, None)
        assert second.json()["choices"] == await right(start, asked)
    assert await two.decode.metric("vllm:prompt_tokens_by_source_total", source="external_kv_transfer") == 109
    await two.settled()


@pytest.mark.parametrize("first", ["prefill", "decode"])
async def test_whoever_comes_first_waits(two: Pair, start: Any, first: str) -> None:
    asked = shared(two, body())
    runnings = {"prefill": two.prefill, "decode": two.decode}
    early = runnings.pop(first)
    [late] = runnings.values()
    leg = asyncio.create_task(send(early, asked))
    await eventually(lambda: early.server.waiting == 1, "it waits")
    assert early.server.running == 0, "nothing is computed"
    answers = {late.server: await send(late, asked), early.server: await leg}
    assert answers[two.decode.server].json()["choices"] == await right(start, asked)
    await two.settled()


async def test_many_at_once(two: Pair, start: Any) -> None:
    bodies = [shared(two, body(letter * 40, 3)) for letter in "abcdefgh"]
    answers = await asyncio.gather(*(both(two, asked) for asked in bodies))
    plain = await start(connector="none")
    for asked, (_, answer) in zip(bodies, answers, strict=True):
        assert answer.json()["choices"] == (await send(plain, asked)).json()["choices"]
    await two.settled()


async def test_any_rank_of_the_prefill_engine_is_found(pair: MakePair) -> None:
    two = await sglangs(pair, prefill={"ranks": 2})
    for rank in "01":
        _, second = await both(two, shared(two, body()), **{"X-data-parallel-rank": rank})
        assert second.status_code == 200
    await two.settled()


@pytest.mark.parametrize("leg", ["prefill", "decode"])
async def test_alone_it_hangs_and_fails_in_the_end(pair: MakePair, leg: str) -> None:
    two = await sglangs(pair, pairing_timeout=0.2, kv_load_failure_policy="recompute")
    answer = await send(two.prefill if leg == "prefill" else two.decode, shared(two, body()))
    assert answer.status_code == 500, "there is no such policy"
    await two.settled()


@pytest.mark.parametrize("leg", ["prefill", "decode"])
async def test_the_other_one_is_not_told_of_an_abort(two: Pair, leg: str) -> None:
    asked = shared(two, body())
    left, staying = (two.prefill, two.decode) if leg == "prefill" else (two.decode, two.prefill)
    first = asyncio.create_task(send(left, asked))
    await eventually(lambda: left.server.waiting == 1, "it waits")
    first.cancel()
    await eventually(lambda: left.server.aborted == 1, "it is aborted")
    second = asyncio.create_task(send(staying, asked))
    await eventually(lambda: staying.server.waiting + staying.server.cache.usage > 0, "the other one comes")
    done, _ = await asyncio.wait([second], timeout=0.1)
    assert not done
    second.cancel()
    await eventually(lambda: two.decode.server.cache.usage == 0, "nothing is kept of the decode leg")


async def test_a_prefill_engine_that_starts_late_is_found(pair: MakePair, start: Any) -> None:
    two = await sglangs(pair)
    asked = shared(two, body())
    await two.prefill.server.close()
    leg = asyncio.create_task(send(two.decode, asked))
    await eventually(lambda: two.decode.server.waiting == 1, "it waits")
    settings = {"connector": "sglang", "kv_role": "producer", "bootstrap_port": asked["bootstrap_port"]}
    again = await start(**settings)
    await send(again, asked)
    assert (await leg).status_code == 200


async def test_another_prompt_in_the_same_room_makes_another_answer(two: Pair, start: Any) -> None:
    one, other = shared(two, body("one")), body("two")
    asked = {**one, **other}
    _, answer = await asyncio.gather(send(two.prefill, one), send(two.decode, asked))
    assert answer.json()["choices"] != await right(start, asked)


async def test_without_a_room_it_is_refused(two: Pair) -> None:
    for running in (two.prefill, two.decode):
        answer = await send(running, body())
        assert answer.status_code == 400
        assert "bootstrap room" in answer.json()["error"]["message"]


def test_an_engine_is_one_of_the_two() -> None:
    with pytest.raises(ValueError, match="kv_role"):
        EngineSettings(connector="sglang")
