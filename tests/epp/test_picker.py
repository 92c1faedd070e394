"""Covers: gateway/epp/picker.py, gateway/epp/call.py, gateway/epp/client.py, gateway/epp/door.py, gateway/epp/edits.py,
gateway/epp/destination.py, gateway/picker_listeners.py.

Requests that a gateway asks of are placed, answered and settled, in each of its modes; over a real gRPC client.
"""

from __future__ import annotations

import asyncio
import gzip
from typing import Any

import grpc
import orjson
import pytest

from gateway.epp.messages import HttpBody, HttpTrailers
from gateway.epp.picker import Picker
from gateway.fleet.settings import EndpointSettings
from gateway.flow.settings import FlowSettings
from gateway.proxy.settings import KeySettings, ListenSettings
from gateway.tenants.limit_settings import LimitSettings
from gateway.tenants.settings import TenantSettings, TenantsSettings
from tests.support.ext_proc import MODES, AskingCall, Modes, Picking, picker_config, picking
from tests.support.wait import eventually

ASK = {"model": "sim", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
STREAM = ASK | {"stream": True}


async def settled(it: Picking, count: int = 1) -> None:
    await eventually(lambda: len(it.running.lines) >= count, "settled")


@pytest.mark.parametrize("body", [ASK, STREAM], ids=["whole", "stream"])
@pytest.mark.parametrize("mode", list(MODES))
async def test_a_request_is_placed_carried_and_settled(it, servers, mode, body):
    carried = await it.modes(mode).post(body)
    assert carried.destination[0] == carried.destination[1], "header and metadata say the same"
    assert carried.destination[0] in [server.url.removeprefix("http://") for server in servers]
    assert carried.status == 200
    assert b"choices" in carried.body
    await settled(it)
    line = it.line
    expected = {"full": "ok", "streamed": "ok", "ends": "ended", "buffered": "ended"}.get(mode, "unheard")
    if mode == "heads" and body is ASK:
        expected = "ended"  # it came as one, when its work was done
    assert (line.outcome, line.model, line.endpoint, line.attempts) == (expected, "sim", carried.destination[0], 1)


# The request on its way


@pytest.mark.parametrize("chunk", [1000, 70_000, 4_000_000])
@pytest.mark.parametrize("mode", ["full", "buffered"])
async def test_a_large_body_passes_whole_in_chunks_of_any_size(it, mode, chunk):
    text = "x" * 1_000_000
    asked = await it.modes(mode).ask(ASK | {"ignored": text}, chunk=chunk)
    carried = await asked.answered()
    assert orjson.loads(carried.sent) == ASK | {"ignored": text}
    asked.call.reset()


async def test_a_body_above_the_limit_is_refused(servers):
    config = picker_config(servers[0].url, listen=ListenSettings(max_body=1000))
    async with picking(config) as it:
        carried = await it.front.post(b'{"x": "' + b"x" * 5000 + b'"}')
        assert (carried.refused, carried.status) == (True, 413)
        assert carried.json["error"]["type"] == "request_too_large"
        await settled(it)
        assert it.running.gateway.memory.held == 0


async def test_headers_are_those_that_the_proxy_would_send(it):
    headers = {
        "authorization": "Bearer of-the-client",
        "cookie": "a=b",
        "x-data-parallel-rank": "3",
        "x-custom": "stays",
        "x-gateway-destination-endpoint": "127.0.0.1:1",
    }
    asked = await it.front.ask(ASK, headers=headers)
    carried = await asked.answered()
    sent = carried.sent_headers
    assert {"authorization", "cookie", "x-data-parallel-rank"}.isdisjoint(sent)
    assert sent["x-custom"] == "stays"
    assert sent["x-gateway-destination-endpoint"] == carried.destination[0] != "127.0.0.1:1"
    assert sent["content-length"] == str(len(carried.sent))
    asked.call.reset()


@pytest.mark.parametrize("mode", ["full", "buffered"])
async def test_an_engine_gets_its_own_name_of_the_model_and_its_key(servers, mode):
    endpoint = EndpointSettings(url=servers[0].url, api_key="of-the-engine")
    async with picking(picker_config(name="mine", aliases=("other",), endpoints=(endpoint,)), modes=mode) as it:
        asked = await it.front.ask(ASK | {"model": "other"})
        carried = await asked.answered()
        assert orjson.loads(carried.sent)["model"] == "sim"
        assert carried.sent_headers["authorization"] == "Bearer of-the-engine"
        assert carried.sent_headers["content-length"] == str(len(carried.sent))
        asked.call.reset()


async def test_compressed_bodies_are_read(it):
    raw = gzip.compress(orjson.dumps(ASK))
    asked = await it.front.ask(raw, headers={"content-encoding": "gzip"})
    carried = await asked.answered()
    assert orjson.loads(carried.sent) == ASK
    assert "content-encoding" not in carried.sent_headers
    asked.call.reset()


async def test_trailers_may_end_the_body(it):
    asked = await it.front.ask(ASK, complete=False)
    await asked.call.say(request_trailers=HttpTrailers())
    kinds = []
    while (message := await asked.call.hear()) is not None:
        kinds.append(message.WhichOneof("response"))
        if kinds[-1] == "request_trailers":
            break
    assert kinds == ["request_headers", "request_body", "request_trailers"]
    asked.call.reset()


# Refused


@pytest.mark.parametrize("mode", ["full", "buffered"])
@pytest.mark.parametrize(
    ("body", "path", "status", "outcome"),
    [
        (b"no json", "/v1/chat/completions", 400, "client_error"),
        (ASK | {"model": "unknown"}, "/v1/chat/completions", 404, "not_found"),
        (ASK, "/v1/load_lora_adapter", 404, None),
    ],
    ids=["json", "model", "path"],
)
async def test_what_the_proxy_refuses_is_refused(it, mode, body, path, status, outcome):
    carried = await it.modes(mode).post(body, path=path)
    assert (carried.refused, carried.status) == (True, status)
    assert carried.json["error"]["code"] == status
    assert carried.headers["content-type"] == "application/json"
    assert carried.headers["x-request-id"] == "id-of-envoy"
    if outcome is not None:
        await settled(it)
        assert it.line.outcome == outcome


async def test_keys_of_clients_are_asked_for(servers):
    config = picker_config(servers[0].url, client_keys=KeySettings(values=("secret",)))
    async with picking(config) as it:
        assert (await it.front.post(ASK)).status == 401
        assert (await it.front.post(None, method="GET", path="/v1/models")).status == 401
        carried = await it.front.post(ASK, headers={"authorization": "Bearer secret"})
        assert (carried.status, carried.refused) == (200, False)


async def test_a_full_model_is_a_429_with_retry_after(servers):
    limits = FlowSettings(max_in_flight=1, max_queue=0)
    async with picking(picker_config(servers[0].url, limits=limits)) as it:
        asked = await it.front.ask(ASK)
        await asked.answered()
        carried = await it.front.post(ASK)
        assert (carried.refused, carried.status, carried.json["error"]["type"]) == (True, 429, "rate_limit_error")
        assert int(carried.headers["retry-after"]) >= 1
        asked.call.reset()
        await eventually(it.running.idle)


async def test_without_an_endpoint_it_is_a_503(servers):
    async with picking(picker_config("http://127.0.0.1:1")) as it:
        carried = await it.front.post(ASK)
        assert (carried.refused, carried.status) == (True, 503)
        assert "retry-after" in carried.headers
        carried = await it.front.post(None, method="GET", path="/v1/models")
        assert (carried.refused, carried.status) == (True, 503)


async def test_a_gateway_that_sends_no_bodies_is_told_so(it):
    carried = await it.front.post(ASK, modes=Modes(request=0))
    assert (carried.refused, carried.status) == (True, 500)


# Where it may go


async def test_a_request_without_a_body_goes_to_any_endpoint_and_is_not_booked(it, servers):
    asked = await it.front.ask(None, method="GET", path="/v1/models")
    carried = await asked.answered()
    assert carried.destination[0] == carried.destination[1]
    assert carried.destination[0] in [server.url.removeprefix("http://") for server in servers]
    assert it.running.idle()
    asked.call.reset()
    refused = await it.front.post(None, method="POST", path="/sleep")
    assert (refused.refused, refused.status) == (True, 404), "what changes an engine passes in no form"


async def test_a_request_without_a_body_has_the_engine_s_key_and_not_the_client_s(servers):
    endpoint = EndpointSettings(url=servers[0].url, api_key="of-the-engine")
    async with picking(picker_config(endpoints=(endpoint,))) as it:
        headers = {"authorization": "Bearer of-the-client", "cookie": "a=b", "x-custom": "stays"}
        asked = await it.front.ask(None, method="GET", path="/v1/models", headers=headers)
        sent = (await asked.answered()).sent_headers
        assert (sent["authorization"], sent["x-custom"], sent["x-request-id"]) == (
            "Bearer of-the-engine",
            "stays",
            "id-of-envoy",
        )
        assert "cookie" not in sent
        asked.call.reset()


async def test_what_is_not_placed_counts_as_running_all_the_same(it, monkeypatch):
    running: list[int] = []

    def counting(real: Any) -> Any:
        async def counted(picker: Picker, *given: Any) -> Any:
            running.append(picker._running)
            return await real(picker, *given)

        return counted

    for real in (Picker.pass_on, Picker.guess):
        monkeypatch.setattr(Picker, real.__name__, counting(real))
    asked = await it.front.ask(None, method="GET", path="/v1/models")
    await asked.answered()
    asked.call.reset()
    asked = await it.front.ask(ASK, modes=Modes(announced=False))
    await asked.answered()
    asked.call.reset()
    assert running == [1, 1]


@pytest.mark.parametrize("form", [str, lambda one: [one, "10.0.0.1:80"]], ids=["text", "list"])
async def test_a_subset_is_kept_to(it, servers, form):
    for server in servers:
        address = server.url.removeprefix("http://")
        for _ in range(3):
            asked = await it.front.ask(ASK, subset=form(address))
            assert (await asked.answered()).destination[0] == address
            asked.call.reset()
    asked = await it.front.ask(ASK, subset=form("127.0.0.1"))
    assert not (await asked.answered()).refused, "an address without a port is all ports of it"
    asked.call.reset()


@pytest.mark.parametrize("subset", ["10.0.0.1:80", "", []])
@pytest.mark.parametrize("body", [ASK, None])
async def test_a_subset_without_an_endpoint_is_a_503(it, subset, body):
    method = "POST" if body else "GET"
    carried = await it.front.post(body, subset=subset, method=method)
    assert (carried.refused, carried.status) == (True, 503)


async def test_a_subset_is_ignored_where_the_configuration_says_so(servers):
    async with picking(picker_config(servers[0].url, epp={"subset": False})) as it:
        assert not (await it.front.post(ASK, subset="10.0.0.1:80")).refused


async def test_fallbacks_are_the_next_best_endpoints(servers):
    async with picking(picker_config(*(server.url for server in servers), epp={"fallbacks": 5})) as it:
        carried = await it.front.post(ASK)
        assert carried.destination[0] == carried.destination[1]
        assert sorted(carried.destination[0].split(",")) == sorted(
            server.url.removeprefix("http://") for server in servers
        )
        await settled(it)
        assert it.line.endpoint == carried.destination[0].partition(",")[0]


# What is told of the answer


async def test_usage_is_requested_where_the_stream_can_be_cleaned_of_it(it):
    carried = await it.front.post(STREAM)
    assert b"include_usage" in carried.sent
    assert b'"usage"' not in carried.body
    assert carried.body.endswith(b"data: [DONE]\n\n")
    await settled(it)
    assert it.line.reported_prompt_tokens is not None
    assert it.line.ttft is not None
    assert it.line.output_tokens == 4


@pytest.mark.parametrize("mode", ["ends", "buffered", "request", "streamed"])
async def test_usage_is_not_requested_where_it_could_not_be_removed(it, mode):
    assert b"include_usage" not in (await it.modes(mode).post(STREAM)).sent


async def test_usage_is_not_requested_of_an_answer_that_will_not_pass_here(servers):
    config = picker_config(servers[0].url, epp={"hears": "full"}, limits=FlowSettings(max_in_flight=1))
    async with picking(config) as it:
        asked = await it.front.ask(STREAM, complete=False, modes=Modes(announced=False))
        await asked.call.half_close()
        assert b"include_usage" not in (await asked.answered()).sent, "it waits for the end of the call"
        await settled(it)
        first = await it.front.ask(STREAM)
        assert b"include_usage" in (await first.answered()).sent
        asked = await it.front.ask(STREAM)
        admission = it.running.gateway.directory.runtimes[0].admission
        await eventually(lambda: admission.waiting == 1)
        door = it.running.gateway.doors.picker
        assert door is not None
        draining = asyncio.create_task(door.drain(30.0))
        await asyncio.sleep(0)
        await it.front.carry(first)
        carried = await asked.answered()
        assert (b"include_usage" in carried.sent, carried.refused) == (False, False), "the picker stops"
        assert await draining


async def test_an_answer_whose_usage_was_requested_when_the_picker_came_to_stop_is_cleaned_of_it(it, monkeypatch):
    door = it.running.gateway.doors.picker
    assert door is not None
    reached, go = asyncio.Event(), asyncio.Event()

    async def held(*given: Any, real: Any = door.picker._addresses.of) -> str:
        reached.set()
        await go.wait()
        return await real(*given)

    monkeypatch.setattr(door.picker._addresses, "of", held)
    asked = await it.front.ask(STREAM)
    await reached.wait()
    draining = asyncio.create_task(door.drain(30.0))
    await asyncio.sleep(0)
    go.set()
    assert b"include_usage" in (await asked.answered()).sent
    carried = await it.front.carry(asked)
    assert carried.body.endswith(b"data: [DONE]\n\n")
    assert b'"usage"' not in carried.body
    assert await draining


async def test_the_answer_has_the_request_s_id_and_the_limits_of_its_tenant(servers):
    tenants = TenantsSettings(
        tenants=(TenantSettings("red", limits=LimitSettings(requests_per_minute=100)),),
        header="x-team",
        trusted=True,
        anonymous=True,
    )
    async with picking(picker_config(servers[0].url, tenants=tenants)) as it:
        carried = await it.front.post(ASK, headers={"x-team": "red"})
        assert carried.headers["x-request-id"] == "id-of-envoy"
        assert any(name.startswith("x-ratelimit") for name in carried.headers)
        assert "x-team" not in carried.sent_headers
        await settled(it)
        assert it.line.tenant == "red"
        assert it.line.charge.output == 4


@pytest.mark.parametrize("body", [ASK, STREAM])
async def test_what_is_not_told_is_charged_as_expected(servers, body):
    config = picker_config(servers[0].url, tenants=TenantsSettings(tenants=(TenantSettings("red"),)))
    async with picking(config, modes="ends") as it:
        await it.front.post(body)
        await settled(it)
        assert (it.line.outcome, it.line.charge.output) == ("ended", 4)
        assert it.line.charge.input > 0
        assert it.line.output_tokens is None


async def test_hears_limits_what_is_used(servers):
    async with picking(picker_config(servers[0].url, epp={"hears": "ends"})) as it:
        carried = await it.front.post(STREAM)
        assert carried.body.endswith(b"data: [DONE]\n\n")
        await settled(it)
        assert it.line.outcome == "ended"
    async with picking(picker_config(servers[0].url, epp={"hears": "request"})) as it:
        asked = await it.front.ask(STREAM)
        await asked.answered()
        assert await asked.call.hear() is None, "the call ends with the answer to its request"
        assert await asked.call.status() is grpc.StatusCode.OK
        await settled(it)
        assert it.line.outcome == "unheard"
        assert it.running.idle()


async def test_an_error_of_the_engine_is_one(it):
    carried = await it.front.post(ASK | {"max_tokens": -1})
    assert carried.status == 400
    await settled(it)
    assert (it.line.outcome, it.line.status) == ("engine_error", 400)


# Gateways that say little


async def test_a_gateway_that_half_closes_gets_its_answer_and_the_end_of_the_call(it):
    """As NGINX's: headers without a path, the whole body, a half-close; it waits for the end of the call."""
    asked = await it.front.ask(ASK, modes=Modes(announced=False))
    await asked.call.half_close()
    carried = await asked.answered()
    assert carried.destination[0] == carried.destination[1] != ""
    while await asked.call.hear() is not None:
        pass
    assert await asked.call.status() is grpc.StatusCode.OK
    await settled(it)
    assert it.line.outcome == "unheard"


async def test_messages_out_of_order_end_the_call(it):
    call = AskingCall(it.front.channel)
    await call.say(request_body=HttpBody(body=b"x"))
    assert await call.status() is grpc.StatusCode.INVALID_ARGUMENT
    call = AskingCall(it.front.channel)
    await call.half_close()
    assert await call.hear() is None
    assert await call.status() is grpc.StatusCode.OK


# Who leaves


@pytest.mark.parametrize("how", ["reset", "half-close"])
@pytest.mark.parametrize("complete", [False, True], ids=["while its body comes", "while it waits"])
async def test_a_client_that_leaves_before_it_is_placed(servers, complete, how):
    limits = FlowSettings(max_in_flight=1, max_queue=5)
    async with picking(picker_config(servers[0].url, limits=limits)) as it:
        first = await it.front.ask(ASK)
        await first.answered()
        admission = it.running.gateway.directory.runtimes[0].admission
        asked = await it.front.ask(ASK, complete=complete)
        if complete:
            await eventually(lambda: admission.waiting == 1)
        await (asked.call.half_close() if how == "half-close" else asyncio.sleep(0))
        if how == "reset":
            asked.call.reset()
        await settled(it)
        assert (it.line.outcome, it.line.status) == ("cancelled", 499)
        await it.front.carry(first)
        await eventually(it.running.idle)
        assert it.running.gateway.doors.server.stages.waiting == 0


async def test_a_client_that_leaves_while_its_answer_is_told(it):
    asked = await it.front.ask(STREAM)
    await asked.answered()
    assert not it.running.idle()
    await asked.call.half_close()
    await settled(it)
    assert (it.line.outcome, it.line.status) == ("cancelled", 499)


@pytest.mark.parametrize(("mode", "outcome"), [("ends", "ended"), ("full", "cancelled")])
async def test_a_gateway_whose_connection_is_lost_has_ended_its_requests(servers, mode, outcome):
    async with picking(picker_config(servers[0].url), modes=mode) as it:
        asked = await it.front.ask(STREAM | {"max_tokens": 1000})
        await asked.answered()
        await it.front.channel.close()
        await settled(it)
        assert it.line.outcome in (outcome, "unheard"), "grpc may reset its calls before it closes"
        await eventually(it.running.idle)
