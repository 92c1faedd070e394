from __future__ import annotations

import asyncio

import pytest

from gateway.api.settings import SloSettings
from gateway.framework import Kind
from gateway.framework.request import Slo
from gateway.proxy.serving.goodput import judge
from tests.support.chat import CHAT
from tests.support.gateway import config_for, running
from tests.support.scripted_engine import ScriptedEngine
from tests.support.wait import eventually
from tests.support.wire import answer

BOTH = Slo(ttft=1.0, tpot=0.05)


def verdict(slo=BOTH, **changes):
    ended = {"kind": Kind.CHAT, "stream": True, "status": 200, "outcome": "ok", "duration": 2.0, "ttft": 0.9}
    return judge(slo, **(ended | {"output_tokens": 51} | changes))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"slo": None}, None),
        ({}, "met"),
        ({"ttft": 1.1}, "missed"),
        ({"duration": 3.5}, "missed"),  # 52 ms a token
        ({"duration": 3.5, "slo": Slo(ttft=1.0)}, "met"),
        ({"ttft": 1.1, "slo": Slo(tpot=0.05)}, "met"),
        ({"ttft": None}, None),
        ({"output_tokens": 1, "duration": 9.0}, "met"),
        # unstreamed: 1 s and 50 tokens of 50 ms
        ({"stream": False, "ttft": None, "duration": 3.5}, "met"),
        ({"stream": False, "ttft": None, "duration": 3.6}, "missed"),
        ({"stream": False, "ttft": None, "slo": Slo(ttft=1.0)}, None),
        ({"stream": False, "ttft": None, "output_tokens": None}, None),
        ({"kind": Kind.EMBEDDING, "stream": False, "ttft": None, "duration": 0.9}, "met"),
        ({"kind": Kind.EMBEDDING, "stream": False, "ttft": None, "duration": 1.1}, "missed"),
        ({"kind": Kind.EMBEDDING, "stream": False, "ttft": None, "slo": Slo(tpot=1.0)}, None),
        # failures
        ({"outcome": "broken"}, "missed"),
        ({"outcome": "no_endpoint", "status": 503}, "missed"),
        ({"outcome": "saturated", "status": 429}, "missed"),
        ({"outcome": "client_error", "status": 400}, None),
        ({"outcome": "engine_error", "status": 400}, None),
        ({"outcome": "engine_error", "status": 500}, "missed"),
        ({"outcome": "cancelled", "status": 499}, None),
        ({"outcome": "cancelled", "status": 499, "ttft": None, "duration": 0.5}, None),
        ({"outcome": "cancelled", "status": 499, "ttft": None, "duration": 1.5}, "missed"),
    ],
)
def test_a_request_is_judged(changes, expected) -> None:
    assert verdict(**changes) == expected


async def test_headers_and_the_model_s_settings_are_counted_and_go_no_further() -> None:
    heads: list[bytes] = []

    async def post(connection, head, body):
        heads.append(head)
        await asyncio.sleep(0.05)
        await connection.say(
            answer(b'{"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}}')
        )

    slo = SloSettings(ttft_ms=20_000, tpot_ms=20_000)
    async with ScriptedEngine(post) as server, running(config_for(server.url, slo=slo)) as gateway:
        path = "/v1/chat/completions"
        assert (await gateway.client.post(path, json=CHAT)).status_code == 200
        tight = {"x-slo-ttft-ms": "1", "X-SLO-TPOT-MS": "0.5"}
        assert (await gateway.client.post(path, json=CHAT, headers=tight)).status_code == 200
        await eventually(lambda: len(gateway.lines) == 2, "both were logged")
        assert [line.slo for line in gateway.lines] == ["met", "missed"]
        metrics = await gateway.metrics()
        assert 'kvgate_goodput_requests_total{model="sim",result="met"} 1.0' in metrics
        assert 'kvgate_goodput_requests_total{model="sim",result="missed"} 1.0' in metrics
        assert not any(b"slo" in head.lower() for head in heads)


async def test_a_wrong_header_is_a_400_that_names_it() -> None:
    async def post(connection, head, body):
        raise AssertionError("no engine is asked")

    async with ScriptedEngine(post) as server, running(config_for(server.url)) as gateway:
        reply = await gateway.client.post("/v1/chat/completions", json=CHAT, headers={"x-slo-ttft-ms": "soon"})
        assert reply.status_code == 400
        error = reply.json()["error"]
        assert error["param"] == "x-slo-ttft-ms"
        assert "milliseconds" in error["message"]
        await eventually(gateway.idle, "nothing is booked")
