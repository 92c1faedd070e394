"""Covers: gateway/framework/request.py, gateway/placement/decision.py, gateway/proxy/serving/handover.py.

A handler from an installed package plans a leg of a third kind: it is booked, explained and kept like the others, and
sent by a carrier that was added for it. Without one, the request fails, and its error names the legs.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
import pytest

from gateway.api.body import JsonBody
from gateway.framework.request import DECODE, PREFILL
from gateway.proxy.serving.attempt import Attempt
from gateway.proxy.serving.handover import Handover
from gateway.proxy.upstream.commit import Committed
from gateway.proxy.upstream.legs import LegFailed
from gateway.scheduling.settings import HandlerSettings
from tests.support.chat import CHAT, COMPLETE, TELLING
from tests.support.gateway import config_for, running
from tests.support.scripted_engine import ScriptedEngine
from tests.support.split import PARAMETERS, Post, Setting, Told, answered, decodes, prefills, resets
from tests.support.wait import eventually
from tests.support.wire import Connection, answer

HANDLER = """
from gateway.framework import Context, NoParameters, Plan


class EncodeApart:
    Parameters = NoParameters
    profiles = ()

    def __init__(self, parameters: NoParameters, context: Context) -> None: ...

    def plan(self, request, endpoints, run):
        encode, decode = endpoints[0], endpoints[-1]
        if encode is decode:
            return Plan.of(decode)
        others = {"prefill": endpoints[1]} if len(endpoints) > 2 else {}
        return Plan.of(decode, encode=encode, **others, reason="encoded")
"""

BODIES = pytest.mark.parametrize("body", [CHAT, TELLING], ids=["whole", "streamed"])


@pytest.fixture
def handler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HandlerSettings:
    """Of a package that somebody has installed."""
    info = tmp_path / "encoding-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: encoding\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[kvgate.handlers]\nencode-apart = kvgate_encode_apart:EncodeApart\n")
    (tmp_path / "kvgate_encode_apart.py").write_text(HANDLER)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "kvgate_encode_apart", raising=False)
    return HandlerSettings("apart", "encode-apart")


async def encodes(connection: Connection, head: bytes, body: bytes) -> None:
    await connection.say(answer(b'{"encoded": "a7"}'))


async def encoded_body(handover: Handover, attempt: Attempt) -> JsonBody:
    """What somebody would add for the kind ``encode``: its answer's word goes into the body of the legs behind it."""
    plan, body = attempt.plan, attempt.call.body
    encode = plan.endpoint("encode")
    assert encode is not None
    assert isinstance(body, JsonBody)
    try:
        with closing(await handover.forwarder.forward(attempt, encode, body, name="encode")) as encoded:
            said = orjson.loads(encoded.data)["encoded"]
    except LegFailed as failure:
        attempt.done("encode", failure.result)
        raise
    attempt.done("encode", "ok")
    leg = body.copy()
    leg.set("encoded", said)
    return leg


async def carry(handover: Handover, attempt: Attempt) -> Committed:
    leg = await encoded_body(handover, attempt)
    return await handover.forwarder.forward(attempt, attempt.plan.decode, leg)


async def carry_before_a_hand_over(handover: Handover, attempt: Attempt) -> Committed:
    return await handover.hand_over(attempt, await encoded_body(handover, attempt))


@pytest.fixture
def carried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(Handover.carriers, ("encode", DECODE), carry)
    monkeypatch.setitem(Handover.carriers, ("encode", PREFILL, DECODE), carry_before_a_hand_over)


@contextlib.asynccontextmanager
async def encoding(handler: HandlerSettings, encode: Post = encodes, *between: Post) -> AsyncIterator[Setting]:
    """``Setting.prefill`` is the engine that encodes. ``between``: of the engines before the one that decodes."""
    first, second = Told(encode), Told(decodes)
    async with contextlib.AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(ScriptedEngine(post)) for post in (first, *between, second)]
        config = config_for(*(server.url for server in servers), handler=handler.name, handlers=(handler,))
        gateway = await stack.enter_async_context(running(config))
        yield Setting(gateway, first, second, servers)


def plan_of(setting: Setting, **changes: Any) -> dict[str, Any]:
    """As the decision's JSON has it."""
    encode, decode = (server.url.removeprefix("http://") for server in setting.servers)
    return {"decode": decode, "prefill": None, "reason": "encoded", "others": {"encode": encode}, **changes}


@pytest.mark.usefixtures("carried")
@BODIES
async def test_a_carrier_sends_a_leg_of_a_third_kind(handler, body):
    async with encoding(handler) as setting:
        assert answered(body, *await setting.ask(body))
        assert setting.prefill.bodies == [body]
        assert setting.decode.bodies == [{**body, "encoded": "a7"}]
        line = await setting.settled()
        assert (line.plan, line.outcome, line.attempts) == ("encoded", "ok", 1)
        assert await setting.attempts() == {("encode", "ok"): 1, ("decode", "ok"): 1}


@pytest.mark.usefixtures("carried")
@BODIES
async def test_a_leg_of_a_third_kind_goes_before_a_hand_over(handler, body):
    """Prefill and decode get the body that the first leg's answer made."""
    prefill = Told(prefills)
    async with encoding(handler, encodes, prefill) as setting:
        assert answered(body, *await setting.ask(body))
        assert setting.prefill.bodies == [body]
        assert [each["encoded"] for each in prefill.bodies] == ["a7"]
        (decoded,) = setting.decode.bodies
        assert decoded == {**body, "encoded": "a7", "kv_transfer_params": PARAMETERS}
        line = await setting.settled()
        assert (line.plan, line.outcome, line.attempts, line.fallback) == ("encoded", "ok", 1, None)
        assert await setting.attempts() == {("encode", "ok"): 1, ("prefill", "ok"): 1, ("decode", "ok"): 1}


@pytest.mark.usefixtures("carried")
async def test_each_leg_is_booked_until_it_has_ended(handler):
    encoded = asyncio.Event()

    async def waits(connection: Connection, head: bytes, body: bytes) -> None:
        await encoded.wait()
        await encodes(connection, head, body)

    async with encoding(handler, waits) as setting:
        gateway = setting.gateway.gateway
        e, d = gateway.fleet.endpoints(gateway.directory.runtimes[0].model)
        asked = asyncio.get_running_loop().create_task(setting.ask(TELLING))
        await eventually(lambda: setting.prefill.bodies, "the leg that encodes runs")
        assert (e.load.requests, e.load.prefill_tokens, e.load.kv_tokens, e.in_flight) == (1, 0, 0, 1)
        assert (d.load.requests, d.load.prefill_tokens > 0, d.load.kv_tokens > 0, d.in_flight) == (1, True, True, 1)
        encoded.set()
        assert answered(TELLING, *await asked)
        await setting.settled()


@pytest.mark.usefixtures("carried")
async def test_decisions_and_explanations_show_it(handler):
    async with encoding(handler) as setting:
        admin, client = setting.gateway.admin_url, setting.gateway.client
        explained = (await client.post(f"{admin}/debug/explain", json=CHAT)).json()["plan"]
        assert explained == plan_of(setting, new_tokens=explained["new_tokens"])
        assert answered(CHAT, *await setting.ask(CHAT))
        for server in setting.servers:
            query = {"endpoint": server.url.removeprefix("http://")}
            (decision,) = (await client.get(f"{admin}/debug/decisions", params=query)).json()["decisions"]
            assert decision["plan"] == plan_of(setting)
        await setting.settled()


@pytest.mark.usefixtures("carried")
async def test_a_leg_that_fails_is_a_failed_attempt_by_the_table(handler):
    """What is left after it is one endpoint, for which the handler plans one leg."""
    async with encoding(handler, resets) as setting:
        assert await setting.ask(CHAT) == (200, COMPLETE)
        assert setting.decode.bodies == [CHAT]
        assert (await setting.settled()).attempts == 2
        assert await setting.attempts() == {("encode", "bad"): 1, ("decode", "ok"): 1}


@BODIES
async def test_without_a_carrier_the_error_names_the_handler_and_the_legs(handler, body):
    async with encoding(handler) as setting:
        status, content = await setting.ask(body)
        assert (status, setting.prefill.bodies, setting.decode.bodies) == (500, [], [])
        message = orjson.loads(content)["error"]["message"]
        assert message == "the handler 'apart' planned the legs encode, decode: the gateway has no carrier for them"
        line = await setting.settled()
        assert (line.outcome, line.plan) == ("plugin_failed", "encoded")
