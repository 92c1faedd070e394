"""What becomes of a booking by what the gateway tells, and where it tells nothing."""

from __future__ import annotations

import httpx
import pytest

from gateway.epp import answer as answers
from gateway.epp.answer import HeardAnswer
from gateway.epp.messages import HttpBody
from gateway.fleet.load.booking import Booking
from gateway.fleet.settings import EndpointSettings
from gateway.flow.settings import QueueSettings
from gateway.framework import Endpoint
from tests.support.engines import engines
from tests.support.ext_proc import Asked, Picking, picker_config, picking
from tests.support.wait import eventually

ASK = {"model": "sim", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
STREAM = ASK | {"stream": True}
LONG = STREAM | {"max_tokens": 100_000}

WORD = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n'
DONE = b"data: [DONE]\n\n"


def endpoints(it: Picking) -> dict[str, Endpoint]:
    gateway = it.running.gateway
    return {one.name: one for one in gateway.fleet.endpoints(gateway.directory.runtimes[0].model)}


async def routed(it: Picking, body=STREAM, mode: str = "full") -> tuple[Asked, Endpoint, Endpoint]:
    """A request that was routed, the endpoint to which, and the other one."""
    asked = await it.modes(mode).ask(body)
    name = (await asked.answered()).destination[0]
    other = next(one for one in endpoints(it).values() if one.name != name)
    return asked, endpoints(it)[name], other


async def settled(it: Picking) -> None:
    await eventually(lambda: it.running.lines, "settled")


# Who served


@pytest.mark.parametrize("mode", ["full", "ends"])
async def test_the_booking_moves_to_who_served(it, mode):
    asked, first, other = await routed(it, mode=mode)
    assert (first.load.requests, other.load.requests) == (1, 0)
    await asked.call.head(served=other.name)
    assert (first.load.requests, other.load.requests) == (0, 1)
    assert first.load.prefill_tokens == first.load.kv_tokens == 0
    assert not first.engine.answers.ended, "nothing is held against the first: the gateway may not know it yet"
    if mode == "full":
        await asked.call.part(WORD)
        await asked.call.part(DONE, last=True)
        asked.call.reset()
    else:
        await asked.call.half_close()
    await settled(it)
    assert (it.line.endpoint, it.line.attempts, it.line.plan) == (other.name, 2, "served")
    assert it.line.outcome == ("ok" if mode == "full" else "ended")
    text = await it.running.metrics()
    assert 'result="moved"} 1' in text


@pytest.mark.parametrize("served", ["", "itself", "10.0.0.1:80"])
async def test_it_stays_where_it_is_if_that_served_or_no_other_is_known(it, served):
    asked, first, other = await routed(it)
    await asked.call.head(served=first.name if served == "itself" else served)
    assert (first.load.requests, other.load.requests) == (1, 0)
    await asked.call.part(WORD)
    await asked.call.part(DONE, last=True)
    asked.call.reset()
    await settled(it)
    assert (it.line.endpoint, it.line.attempts, it.line.outcome) == (first.name, 1, "ok")


# The gateway's own answers


@pytest.mark.parametrize(
    ("details", "result", "is_down", "outcome"),
    [
        ("upstream_reset_before_response_started{remote_connection_failure|x}", "refused", True, "upstream_error"),
        ("upstream_reset_before_response_started{connection_termination}", "died", False, "upstream_error"),
        ("upstream_response_timeout", "head-timeout", False, "upstream_timeout"),
        ("upstream_reset_before_response_started{overflow}", "gateway", False, "upstream_error"),
        ("no_healthy_upstream", "gateway", False, "upstream_error"),
    ],
)
@pytest.mark.parametrize("mode", ["full", "ends"])
async def test_an_answer_of_the_gateway_s_own_is_a_failure_of_the_endpoint(it, mode, details, result, is_down, outcome):
    asked, first, _ = await routed(it, mode=mode)
    downs: list[str] = []
    real = it.running.gateway.fleet.report_refused
    it.running.gateway.fleet.report_refused = lambda endpoint: (downs.append(endpoint.name), real(endpoint))
    await asked.call.head(503, "text/plain", code_details=details)
    assert it.running.idle(), "it is free before its client can know"
    if mode == "full":
        assert await asked.call.part(b"no engine", last=True) == b"no engine"
    asked.call.reset()
    await settled(it)
    assert (it.line.outcome, it.line.status) == (outcome, 503)
    assert details in it.line.error
    assert downs == ([first.name] if is_down else [])
    assert f'result="{result}"}} 1' in await it.running.metrics()


async def test_an_answer_by_way_of_an_endpoint_is_its_own(it):
    asked, *_ = await routed(it)
    await asked.call.head(503, "application/json", code_details="via_upstream")
    assert not it.running.idle()
    await asked.call.part(b"{}", last=True)
    asked.call.reset()
    await settled(it)
    assert (it.line.outcome, it.line.status) == ("engine_error", 503)


# What is heard of a stream


async def test_a_stream_is_followed_as_the_proxy_does(it):
    asked, first, _ = await routed(it)
    await asked.call.head()
    assert first.load.prefill_tokens > 0
    assert await asked.call.part(WORD) == WORD
    assert first.load.prefill_tokens == 0, "the first token came"
    for _ in range(40):
        await asked.call.part(WORD)
    assert first.load.kv_tokens > 30
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":41}}\n\n'
    await asked.call.say(response_body=HttpBody(body=usage))
    assert await asked.call.part(DONE, last=True) == DONE, "a usage that only we have requested does not pass"
    asked.call.reset()
    await settled(it)
    line = it.line
    assert (line.outcome, line.output_tokens, line.reported_prompt_tokens) == ("ok", 41, 9)
    assert line.ttft is not None


async def test_a_broken_stream_holds_an_error(it):
    asked, *_ = await routed(it)
    await asked.call.head()
    await asked.call.part(WORD)
    await asked.call.part(b'data: {"error": {"message": "x"}}\n\n', last=True)
    asked.call.reset()
    await settled(it)
    assert it.line.outcome == "engine_error"


@pytest.mark.parametrize("mode", ["ends", "buffered"])
async def test_where_no_token_is_told_the_prompt_is_computed_when_that_is_predicted(it, mode):
    asked, first, _ = await routed(it, LONG, mode)
    await eventually(lambda: first.load.prefill_tokens == 0, "the prompt counts as computed")
    assert first.load.requests == 1, "its answer goes on"
    await asked.call.half_close()
    await settled(it)
    assert it.line.outcome == "ended"


@pytest.mark.parametrize("type", ["text/event-stream", "application/json"])
async def test_a_defect_while_an_answer_is_read_loses_nothing_of_it(it, monkeypatch, type):
    def fail(*given):
        raise RuntimeError("a defect")

    asked, *_ = await routed(it)
    monkeypatch.setattr(HeardAnswer, "_look", fail)
    monkeypatch.setattr(HeardAnswer, "_save", fail)
    await asked.call.head(type=type)
    assert await asked.call.part(WORD) == WORD
    await settled(it)
    assert it.line.status == 500
    assert await asked.call.part(WORD) == WORD
    assert await asked.call.part(DONE, last=True) == DONE
    asked.call.reset()


async def test_what_is_kept_of_an_answer_is_counted_and_bounded(it, monkeypatch):
    monkeypatch.setattr(answers, "MOST_KEPT", 3000)
    memory = it.running.gateway.memory
    asked, *_ = await routed(it, ASK)
    await asked.call.head(type="application/json")
    await asked.call.part(b"x" * 2000)
    assert memory.held == 2000
    await asked.call.part(b"x" * 2000)
    assert memory.held == 0, "it is too long"
    await asked.call.part(b"x", last=True)
    asked.call.reset()
    asked, *_ = await routed(it, ASK)
    await asked.call.head(type="application/json")
    await asked.call.part(b"x" * 1000)
    memory.allow(1000)
    assert await asked.call.part(b"x" * 1000) == b"x" * 1000
    assert memory.held == 0, "there is no room"
    await asked.call.part(b"x", last=True)
    asked.call.reset()
    await eventually(lambda: len(it.running.lines) == 2)
    assert [line.outcome for line in it.running.lines] == ["ok", "ok"]


# What is not heard


async def test_an_answer_that_nobody_tells_of_is_booked_as_long_as_it_is_predicted_to_take(it):
    asked, first, _ = await routed(it, LONG, "request")
    asked.call.reset()
    door = it.running.gateway.doors.picker
    assert door is not None
    await eventually(lambda: not it.listeners._server.calls, "the call is over")
    assert first.load.requests == 1
    assert not it.running.lines
    assert await door.drain(10.0), "at the end it is given back at once"
    await settled(it)
    assert (it.line.outcome, it.line.endpoint, it.line.status) == ("unheard", first.name, 0)
    assert it.running.idle()


async def test_an_answer_that_is_no_stream_has_ended_when_its_head_is_told(it):
    asked, *_ = await routed(it, LONG, "heads")
    await asked.call.head(200, "application/json")
    asked.call.reset()
    await settled(it)
    assert (it.line.outcome, it.line.status) == ("ended", 200)


async def test_an_error_whose_end_nobody_tells_has_ended(it):
    asked, *_ = await routed(it, LONG, "heads")
    await asked.call.head(400, "application/json")
    asked.call.reset()
    await settled(it)
    assert (it.line.outcome, it.line.status) == ("engine_error", 400)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_response_is_gone_on_from_where_it_is_kept(it, stream):
    ask = {"model": "sim", "input": "hello", "max_output_tokens": 4, "stream": stream}
    for number in range(4):
        asked = await it.front.ask(ask, path="/v1/responses")
        first = (await asked.answered()).destination[0]
        id = f"resp_{stream}_{number}"
        if stream:
            await asked.call.head()
            begun = (
                b'event: response.created\ndata: {"type":"response.created","response":{"id":"%s"}}\n\n' % id.encode()
            )
            await asked.call.part(begun[:40])
            await asked.call.part(begun[40:])
            await asked.call.part(b'event: response.completed\ndata: {"type":"response.completed"}\n\n', last=True)
        else:
            await asked.call.head(type="application/json")
            await asked.call.part(b'{"id": "%s", "object": "response"}' % id.encode(), last=True)
        asked.call.reset()
        asked = await it.front.ask(ask | {"previous_response_id": id}, path="/v1/responses")
        carried = await asked.answered()
        assert (carried.refused, carried.destination[0]) == (False, first)
        asked.call.reset()


async def test_a_request_waits_in_its_model_s_queue_and_may_leave_it(servers):
    endpoint = EndpointSettings(url=servers[0].url, kv_capacity_tokens=16)
    config = picker_config(endpoints=(endpoint,), queue=QueueSettings(max_wait=60.0, patience=30.0))
    async with picking(config) as it:
        first = await it.front.ask(STREAM)
        await first.answered()
        waiting = [await it.front.ask(STREAM) for _ in range(3)]
        [queue] = it.running.gateway.reloading.wiring.queues.values()
        await eventually(lambda: queue.held.waiting == 3)
        waiting[0].call.reset()
        await waiting[1].call.half_close()
        await eventually(lambda: queue.held.waiting == 1)
        await it.front.carry(first)
        assert not (await waiting[2].answered()).refused
        await it.front.carry(waiting[2])
        await eventually(lambda: len(it.running.lines) == 4)
        assert sorted(line.outcome for line in it.running.lines) == ["cancelled", "cancelled", "ok", "ok"]
        await eventually(it.running.idle)
        assert max(line.queue_wait for line in it.running.lines) > 0


async def test_where_no_token_is_told_the_engine_s_events_of_the_prompt_end_its_computing(tokenizer, monkeypatch):
    monkeypatch.setattr(Booking, "unreported", lambda booking: None)  # as if the prediction were far too long
    async with engines(1, tokenizer=tokenizer) as [server]:
        config = picker_config(server.url, tokenizer=tokenizer)
        async with picking(config, modes="ends") as it, httpx.AsyncClient() as http:
            body = STREAM | {"messages": [{"role": "user", "content": "hello there " * 100}]}
            asked = await it.front.ask(body)
            carried = await asked.answered()
            [load] = [one.load for one in endpoints(it).values()]
            assert load.prefill_tokens > 0
            await http.post(f"{server.url}/v1/chat/completions", content=carried.sent)
            await eventually(lambda: load.prefill_tokens == 0, "its events have come")
            assert load.requests == 1
            await asked.call.half_close()
            await settled(it)
            await eventually(it.running.idle)
