"""The mock engines answer as vLLM does, as the field ``ORDERS`` says, and count what they have answered."""

from __future__ import annotations

import asyncio
import json
import statistics
from collections.abc import Iterator
from itertools import islice, pairwise

import httpx
import pytest

from benchmarks.data_path.engines import (
    ANSWER,
    EARLIEST,
    EVENTS,
    LATEST,
    ORDERS,
    read_orders,
    spread,
    streamed,
    tokenized,
)
from gateway.commands.processes import Processes
from tests.benchmarks.data_path.small import engines

CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def url(tmp_path_factory) -> Iterator[str]:
    with Processes(tmp_path_factory.mktemp("engines")) as processes:
        yield engines(processes, "tcp://127.0.0.1:1,tcp://127.0.0.1:2")[0]


def asked(orders: str, **more: object) -> dict[str, object]:
    return {"model": "sim", "messages": [{"role": "user", "content": "Hello"}], ORDERS: orders, **more}


async def test_an_answer_has_its_size_and_the_tokens_that_were_told(url) -> None:
    async with httpx.AsyncClient(base_url=url, trust_env=False, verify=False) as client:
        for tokens in (7, 123_456):
            answer = await client.post(CHAT, json=asked(f"tokens={tokens}"))
            assert answer.status_code == 200
            assert len(answer.content) == ANSWER
            assert answer.json()["usage"]["prompt_tokens"] == tokens


async def test_a_stream_has_its_events(url) -> None:
    async with httpx.AsyncClient(base_url=url, trust_env=False, verify=False) as client:
        for orders, count in (("step=1", EVENTS), ("events=2 step=1", 2)):
            answer = await client.post(CHAT, json=asked(orders, stream=True))
            lines = [line for line in answer.text.split("\n\n") if line]
            assert lines.pop() == "data: [DONE]"
            events = [json.loads(line.removeprefix("data: ")) for line in lines]
            assert len(events) == count
            assert [event["choices"][0]["finish_reason"] for event in events] == [None] * (count - 1) + ["length"]


async def test_what_goes_wrong_where_it_is_asked_for(url) -> None:
    async with httpx.AsyncClient(base_url=url, trust_env=False, verify=False, timeout=30) as client:
        for status in (400, 500):
            assert (await client.post(CHAT, json=asked(f"fail={status}"))).status_code == status
        for stream in (False, True):
            with pytest.raises(httpx.RemoteProtocolError):
                await client.post(CHAT, json=asked("cut", stream=stream))
        assert (await client.get("/get_model_info")).status_code == 404
        async with client.stream("POST", CHAT, json=asked("hold", stream=True)) as answer:
            assert b'"role":"assistant"' in await anext(answer.aiter_raw())


async def test_late_answers_do_not_hold_others_up(url) -> None:
    async with httpx.AsyncClient(base_url=url, trust_env=False, verify=False, timeout=None) as client:
        late = asyncio.create_task(client.post(CHAT, json=asked("late=1000000")))
        assert (await client.post(CHAT, json=asked(""))).status_code == 200
        assert not late.done()
        late.cancel()
        await asyncio.gather(late, return_exceptions=True)


async def test_what_was_answered_is_counted(url) -> None:
    async with httpx.AsyncClient(base_url=url, trust_env=False, verify=False, timeout=30) as client:

        async def counts() -> dict[str, int]:
            return dict((await client.get("/counts")).json())

        before = await counts()
        await client.post(CHAT, json=asked(""))
        await client.post(CHAT, json=asked("events=5 step=1", stream=True))
        after = await counts()
        assert after["whole"] - before.get("whole", 0) == 1
        assert after["events"] - before.get("events", 0) == 5


async def test_a_stream_whose_reader_has_gone_ends(url) -> None:
    async with httpx.AsyncClient(base_url=url, trust_env=False, verify=False, timeout=30) as client:
        async with client.stream("POST", CHAT, json=asked("events=1000000 step=1", stream=True)) as answer:
            await anext(answer.aiter_raw())

        async def count() -> int:
            return (await client.get("/counts")).json()["events"]

        async def still() -> bool:
            """While another stream with the same step has its events, nothing else is said."""
            before = await count()
            await client.post(CHAT, json=asked("events=20 step=1", stream=True))
            return await count() == before + 20

        for _ in range(100):
            if await still():
                break
        else:
            raise AssertionError("the engine goes on")


def test_orders_are_the_field_and_not_a_role() -> None:
    assert read_orders(b'{"messages":[{"role":"user","content":"x"}],"safety_identifier":"tokens=3 hold"}') == {
        "tokens": "3",
        "hold": "",
    }
    assert read_orders(b'{"messages":[{"role": "user"}], "safety_identifier": " late=5"}') == {"late": "5"}
    assert read_orders(b'{"messages":[{"role":"user","content":"x"}]}') == {}


def test_streamed_as_routers_write_it() -> None:
    assert streamed(b'{"stream":true}')
    assert streamed(b'{"a":1, "stream": true, "b": 2}')
    assert not streamed(b'{"stream":false}')
    assert not streamed(b'{"messages":[]}')


def test_as_many_ids_as_a_text_has() -> None:
    answer = json.loads(tokenized(400).partition(b"\r\n\r\n")[2])
    assert answer["count"] == len(answer["tokens"]) == 100


def test_late_answers_are_spread_evenly() -> None:
    """The middle of a few hundred is that of all: it is what the p50 of a run is compared with."""
    found = sorted(islice(spread(), 500))
    assert EARLIEST <= found[0] < found[-1] <= LATEST
    assert statistics.median(found) == pytest.approx(1.0, abs=0.002)
    steps = [later - earlier for earlier, later in pairwise(found)]
    assert max(steps) < 3 * (LATEST - EARLIEST) / len(found), "no burst, and no gap"
