"""Covers: gateway/epp/observing.py, gateway/epp/answer.py.

A second filter that only tells of answers.
"""

from __future__ import annotations

from typing import Any

import pytest

from gateway.epp.messages import HttpBody, HttpHeaders, ProcessingRequest
from tests.support.engines import simulated
from tests.support.ext_proc import AskingCall, Picking, header_map, picker_config, picking
from tests.support.wait import eventually

STREAM = {"model": "sim", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 100_000, "stream": True}
WORD = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2}}\n\n'
DONE = b"data: [DONE]\n\n"


class Observer(AskingCall):
    async def tell(self, **message: Any) -> None:
        await self.send(ProcessingRequest(observability_mode=True, **message))


async def observing(it: Picking, id: str = "id-of-envoy") -> Observer:
    call = Observer(it.front.channel)
    await call.tell(
        request_headers=HttpHeaders(headers=header_map([(":path", "/v1/chat/completions"), ("x-request-id", id)]))
    )
    return call


async def headed(call: Observer) -> None:
    headers = header_map([(":status", "200"), ("content-type", "text/event-stream")])
    await call.tell(response_headers=HttpHeaders(headers=headers))


def load(it: Picking) -> Any:
    gateway = it.running.gateway
    return gateway.fleet.endpoints(gateway.directory.runtimes[0].model)[0].load


@pytest.mark.parametrize("mode", ["request", "ends"])
async def test_all_is_learned_of_an_answer_of_which_its_own_call_tells_little(mode):
    async with simulated() as server, picking(picker_config(server.url), modes=mode) as it:
        observer = await observing(it)
        asked = await it.front.ask(STREAM)
        await asked.answered()
        if mode == "request":
            asked.call.reset()
        await headed(observer)
        await observer.tell(response_body=HttpBody(body=WORD))
        await eventually(lambda: load(it).prefill_tokens == 0)
        if mode == "ends":
            await asked.call.half_close()
        for part in (WORD, USAGE):
            await observer.tell(response_body=HttpBody(body=part))
        assert load(it).requests == 1
        await observer.tell(response_body=HttpBody(body=DONE, end_of_stream=True))
        await eventually(lambda: it.running.lines)
        assert (it.line.outcome, it.line.output_tokens, it.line.reported_prompt_tokens) == ("ok", 2, 9)
        assert it.line.ttft is not None
        await observer.half_close()
        assert await observer.hear() is None
        assert it.running.idle()


@pytest.mark.parametrize(("bodies", "outcome"), [(False, "ended"), (True, "cancelled")])
@pytest.mark.parametrize("how", ["reset", "half-close"])
async def test_its_end_is_the_answer_s(bodies, outcome, how):
    async with simulated() as server, picking(picker_config(server.url), modes="request") as it:
        asked = await it.front.ask(STREAM)
        await asked.answered()
        asked.call.reset()
        observer = await observing(it)
        await headed(observer)
        if bodies:
            await observer.tell(response_body=HttpBody(body=WORD))
        door = it.running.gateway.doors.picker
        assert door is not None
        await eventually(lambda: door.find("id-of-envoy").is_observed)
        assert load(it).requests == 1
        if bodies:
            await eventually(lambda: load(it).prefill_tokens == 0, "the part has come")
        if how == "reset":
            observer.reset()
        else:
            await observer.half_close()
        await eventually(lambda: it.running.lines)
        assert it.line.outcome == outcome
        assert it.running.idle()
        await eventually(lambda: door.find("id-of-envoy") is None)


async def test_an_answer_that_will_be_told_of_does_not_end_by_prediction():
    """The filter's call comes first: the request is short, and predicted to end long before its engine answers."""
    async with simulated() as server, picking(picker_config(server.url), modes="request") as it:
        observer = await observing(it)
        asked = await it.front.ask(STREAM | {"max_tokens": 1})
        await asked.answered()
        asked.call.reset()
        door = it.running.gateway.doors.picker
        assert door is not None
        await eventually(lambda: door.find("id-of-envoy") is not None)
        answer = door.find("id-of-envoy")
        assert answer is not None
        assert answer.is_observed
        assert answer._timer is None
        await observer.half_close()
        await eventually(lambda: it.running.lines)
        assert it.line.outcome == "ended"
        assert it.running.idle()


async def test_what_is_told_of_nobody_s_request_is_dropped():
    async with simulated() as server, picking(picker_config(server.url)) as it:
        observer = await observing(it, id="unknown")
        await headed(observer)
        await observer.tell(response_body=HttpBody(body=WORD, end_of_stream=True))
        await observer.half_close()
        assert await observer.hear() is None
        assert not it.running.lines


async def test_its_calls_end_at_once_when_the_picker_stops():
    async with simulated() as server, picking(picker_config(server.url), modes="ends") as it:
        observers = [await observing(it), await observing(it, "of another")]
        asked = await it.front.ask(STREAM)
        await asked.answered()
        await headed(observers[0])
        await observers[0].tell(response_body=HttpBody(body=WORD))
        await eventually(lambda: load(it).prefill_tokens == 0)
        door = it.running.gateway.doors.picker
        assert door is not None
        assert await door.drain(10.0), "none had to be cut"
        for call in (*observers, asked.call):
            assert await call.hear() is None
        await eventually(lambda: it.running.lines)
        assert it.line.outcome == "unheard", "the answer goes on"
