"""Covers: gateway/epp/picker.py, gateway/epp/answer.py.

Requests whose prompt is better computed on another engine, where a gateway carries them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gateway.epp.settings import PickerSettings
from gateway.framework import Endpoint
from simulator.settings import EngineSettings
from tests.support.engines import each_simulated
from tests.support.ext_proc import MODES, Picking, picking
from tests.support.gateway import split_config
from tests.support.wait import eventually

ASK: dict[str, Any] = {"model": "sim", "messages": [{"role": "user", "content": "hello " * 50}], "max_tokens": 4}
STREAM = ASK | {"stream": True}
PAIR = (EngineSettings(kv_role="producer"), EngineSettings(kv_role="consumer"))
WORD = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n'


def config(servers: Any, split: str | None, **parameters: Any) -> Any:
    made = split_config([servers[0].url], [servers[1].url], parameters=parameters)
    return replace(made, epp=PickerSettings(split=split))


def endpoint(it: Picking, server: Any) -> Endpoint:
    gateway = it.running.gateway
    model = gateway.directory.runtimes[0].model
    return next(one for one in gateway.fleet.endpoints(model) if one.engine.url == server.url)


async def test_without_a_word_the_decode_endpoint_does_all_of_it():
    async with each_simulated(*PAIR) as servers, picking(config(servers, None)) as it:
        carried = await it.front.post(ASK)
        assert carried.destination[0] == servers[1].url.removeprefix("http://")
        assert "x-prefiller-host-port" not in carried.sent_headers
        await eventually(lambda: it.running.lines)
        assert (it.line.plan, it.line.prefill_endpoint, it.line.outcome) == ("picker", None, "ok")


async def test_a_sidecar_is_told_of_the_prefill_endpoint_and_both_are_booked():
    async with each_simulated(*PAIR) as servers, picking(config(servers, "headers")) as it:
        prefill, decode = (endpoint(it, server) for server in servers)
        asked = await it.front.ask(STREAM, headers={"x-prefiller-host-port": "10.0.0.1:1"})
        carried = await asked.answered()
        assert carried.destination[0] == decode.name
        assert carried.sent_headers["x-prefiller-host-port"] == prefill.name, "and not what the client says"
        assert (prefill.load.requests, decode.load.requests) == (1, 1)
        assert decode.load.prefill_tokens == 0
        await asked.call.head()
        await asked.call.part(WORD)
        assert (prefill.load.requests, decode.load.requests) == (0, 1), "the prompt is computed"
        await asked.call.part(b"data: [DONE]\n\n", last=True)
        asked.call.reset()
        await eventually(lambda: it.running.lines)
        assert (it.line.plan, it.line.prefill_endpoint, it.line.endpoint) == ("split", prefill.name, decode.name)
        assert it.line.outcome == "ok"
        assert it.running.idle()


@pytest.mark.parametrize("mode", ["ends", "request"])
async def test_where_no_token_is_told_the_prefill_ends_when_that_is_predicted(mode):
    async with each_simulated(*PAIR) as servers, picking(config(servers, "headers"), modes=mode) as it:
        prefill, decode = (endpoint(it, server) for server in servers)
        asked = await it.front.ask(STREAM | {"max_tokens": 100_000})
        await asked.answered()
        if mode == "request":
            asked.call.reset()
        await eventually(lambda: prefill.load.requests == 0, "the prefill has ended")
        assert decode.load.requests == 1, "its answer goes on"
        if mode == "ends":
            await asked.call.half_close()
        else:
            assert it.running.gateway.doors.picker is not None
            await it.running.gateway.doors.picker.drain(10.0)
        await eventually(it.running.idle)
        assert it.line.outcome == ("ended" if mode == "ends" else "unheard")


async def test_a_client_that_leaves_gives_both_back():
    async with each_simulated(*PAIR) as servers, picking(config(servers, "headers")) as it:
        asked = await it.front.ask(STREAM)
        await asked.answered()
        await asked.call.half_close()
        await eventually(it.running.idle)
        await eventually(lambda: it.running.lines)
        assert it.line.outcome == "cancelled"


async def test_a_proxy_of_ours_splits_what_is_to_be_split_and_counts_it():
    async with each_simulated(*PAIR) as servers, picking(config(servers, None)) as it:
        proxy = it.running.url.removeprefix("http://")
        wanted = replace(it.running.gateway.config, epp=PickerSettings(split=proxy))
        assert (await it.running.reload(wanted)).status_code == 200
        carried = await it.front.post(ASK, headers={"x-custom": "a", "authorization": "Bearer b"})
        assert carried.destination == (proxy, proxy)
        assert carried.sent_headers["authorization"] == "Bearer b", "it goes there as it came"
        assert carried.status == 200
        await eventually(lambda: len(it.running.lines) == 2)
        by_outcome = {line.outcome: line for line in it.running.lines}
        assert by_outcome.keys() == {"passed", "ok"}
        assert (by_outcome["ok"].plan, by_outcome["passed"].endpoint) == ("split", None)
        assert it.running.idle()


@pytest.mark.parametrize("mode", list(MODES))
async def test_what_is_not_to_be_split_goes_to_an_engine(mode):
    async with (
        each_simulated(*PAIR) as servers,
        picking(config(servers, "127.0.0.1:1", threshold=10_000), modes=mode) as it,
    ):
        carried = await it.front.post(ASK)
        assert carried.destination[0] == servers[1].url.removeprefix("http://")
        assert carried.status == 200
        await eventually(it.running.idle)
