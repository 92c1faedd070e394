"""A split request's two legs, and every way in which they fail, on engines that say what bytes a test wants."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

import orjson
import pytest

from gateway.proxy.settings import RetrySettings, TimeoutSettings
from tests.support.chat import CHAT, COMPLETE, DONE, ROLE, TELLING, WORD
from tests.support.gateway import PATIENT, SOON
from tests.support.scripted_engine import ScriptedEngine
from tests.support.split import (
    FAILED,
    PARAMETERS,
    PREFILLED,
    UNWATCHED,
    Setting,
    Told,
    answered,
    decodes,
    dies_half_way,
    fetching_fails,
    hangs,
    pair,
    prefills,
    resets,
    says,
    stalls_half_way,
    talks_garbage,
)
from tests.support.wait import eventually
from tests.support.wire import STREAM_HEAD, Connection, answer, chunked

BODIES = pytest.mark.parametrize("body", [CHAT, TELLING], ids=["whole", "streamed"])


@BODIES
async def test_the_two_legs(body):
    sent = {**body, "min_tokens": 3, "logprobs": True, "max_tokens": 50, "temperature": 0.5}
    async with pair() as setting:
        assert answered(body, *await setting.ask(sent, **{"x-request-id": "one", "x-trace": "t"}))
        (first,), (second,) = setting.prefill.bodies, setting.decode.bodies
        asked = first.pop("kv_transfer_params")
        assert (asked["do_remote_decode"], asked["do_remote_prefill"]) == (True, False)
        assert first == {
            **{name: sent[name] for name in ("model", "messages", "temperature")},
            "stream": False,
            "max_tokens": 1,
            "max_completion_tokens": 1,
        }
        assert second == {**sent, "kv_transfer_params": PARAMETERS}
        for (head,) in (setting.prefill.heads, setting.decode.heads):
            assert head.lower().count(b"x-request-id: one\r\n") == 1
            assert b"x-trace: t" in head.lower()
        line = await setting.settled()
        names = [server.url.removeprefix("http://") for server in setting.servers]
        assert (line.plan, line.fallback, [line.prefill_endpoint, line.endpoint]) == ("split", None, names)
        assert line.prefill_time > 0
        metrics = await setting.gateway.metrics()
        assert 'kvgate_plans_total{model="sim",reason="split"} 1.0' in metrics
        for name, leg in zip(names, ("prefill", "decode"), strict=True):
            assert f'kvgate_attempts_total{{endpoint="{name}",leg="{leg}",model="sim",result="ok"}} 1.0' in metrics
        assert 'kvgate_prefill_leg_seconds_count{model="sim"} 1.0' in metrics
        assert 'kvgate_handover_seconds_count{model="sim"} 1.0' in metrics


async def test_each_leg_is_counted_when_it_ends_and_not_with_its_request():
    async with pair(decode=hangs) as setting:
        asked = asyncio.create_task(setting.ask(CHAT))
        await eventually(lambda: setting.decode.bodies, "the decode leg runs")
        assert await setting.attempts() == {("prefill", "ok"): 1}
        assert 'kvgate_plans_total{model="sim",reason="split"} 1.0' in await setting.gateway.metrics()
        asked.cancel()
        await setting.settled()
        assert await setting.attempts() == {("prefill", "ok"): 1, ("decode", "bad"): 1}


PREFILL_FAILURES = {
    "prefill-died": resets,
    "prefill-head-timeout": hangs,
    "prefill-garbage": talks_garbage,
    "prefill-died half way": dies_half_way,
    "prefill-total-timeout": stalls_half_way,
    "prefill-status": says(FAILED),
    "prefill-status 503": says(answer(b"{}", status="503 Service Unavailable")),
    "prefill-status 401": says(answer(b"{}", status="401 Unauthorized")),
    "prefill-status 429": says(answer(b"{}", status="429 Too Many Requests")),
    "prefill-malformed": says(answer(b"no JSON")),
    "prefill-malformed stream": says(STREAM_HEAD + chunked(ROLE, WORD, DONE)),
    "prefill-incomplete": says(answer(COMPLETE)),
    "prefill-incomplete object": says(answer(PREFILLED.replace(b'"remote_engine_id"', b'"x"'))),
}


def within(name: str) -> TimeoutSettings:
    """The limits for one of PREFILL_FAILURES."""
    return replace(PATIENT, prefill=SOON) if "timeout" in name else PATIENT


@BODIES
@pytest.mark.parametrize("name", list(PREFILL_FAILURES))
async def test_without_a_good_prefill_the_decode_endpoint_computes_the_prompt(name, body):
    async with pair(PREFILL_FAILURES[name], timeouts=within(name)) as setting:
        assert answered(body, *await setting.ask(body))
        assert setting.decode.bodies == [body]
        line = await setting.settled()
        assert (line.outcome, line.fallback) == ("ok", name.partition(" ")[0])
        counted = await setting.attempts()
        assert (sorted(leg for leg, _ in counted), set(counted.values())) == (["decode", "prefill"], {1})
        metrics = await setting.gateway.metrics()
        assert f'kvgate_handover_fallbacks_total{{cause="{line.fallback}",model="sim"}} 1.0' in metrics


async def test_a_prefill_that_is_refused():
    async with pair(fleet=UNWATCHED) as setting:
        setting.servers[0].refuse()
        assert answered(CHAT, *await setting.ask(CHAT))
        assert (await setting.settled()).fallback == "prefill-refused"


@BODIES
@pytest.mark.parametrize("status", ["400 Bad Request", "404 Not Found", "422 Unprocessable Entity"])
async def test_a_prefills_4xx_is_the_clients(status, body):
    said = b'{"error": {"message":"no  such\\u0020thing","code":400}}'
    async with pair(says(answer(said, status=status))) as setting:
        assert await setting.ask(body) == (int(status[:3]), said)
        assert setting.decode.bodies == []
        line = await setting.settled()
        assert (line.outcome, line.attempts) == ("engine_error", 1)


async def test_no_two_hand_overs_have_the_same_id():
    """Engines that push KV find a request's by its id."""
    async with pair() as setting:
        for _ in range(2):
            asked = (setting.ask(CHAT, **{"x-request-id": "same"}) for _ in range(2))
            assert all(answered(CHAT, *got) for got in await asyncio.gather(*asked))
        prefilled, decoded = (sorted(ids(told)) for told in (setting.prefill, setting.decode))
        assert prefilled == decoded
        assert len(set(prefilled)) == 4
        assert prefilled[0] == b"same"
        assert all(one.startswith(b"same") for one in prefilled)
        assert {line.request_id for line in setting.gateway.lines} == {"same"}


def ids(told: Told) -> list[bytes]:
    """The ``x-request-id`` of each leg."""
    return [head.lower().partition(b"x-request-id: ")[2].partition(b"\r\n")[0] for head in told.heads]


@dataclass
class Held:
    """A request whose prefill runs until ``end``, and the decode engine that will be asked next.

    ``told``: what that one was asked; ``other``: what the other one was. ``ended``: status and answer of the request.
    """

    setting: Setting
    server: ScriptedEngine
    told: Told
    other: Told
    end: Callable[[], None]
    ended: Awaitable[tuple[int, bytes]]


@contextlib.asynccontextmanager
async def while_the_prefill_runs(body: dict[str, Any]) -> AsyncIterator[Held]:
    """Ask ``body`` of a prefill engine and two decode engines; nothing but the test ends the prefill."""
    held = asyncio.Event()

    async def waits(connection: Connection, head: bytes, request: bytes) -> None:
        await held.wait()
        await prefills(connection, head, request)

    decoding = Told(decodes), Told(decodes)
    async with pair(waits, *decoding) as setting:
        asked = asyncio.get_running_loop().create_task(setting.ask(body))
        await eventually(lambda: setting.prefill.bodies, "the prefill runs")
        endpoints = setting.gateway.gateway.fleet.endpoints(setting.gateway.gateway.directory.runtimes[0].model)
        chosen = next(e for e in endpoints if e.role == "decode" and e.load.requests)
        server = next(s for s in setting.servers if s.url == chosen.engine.url)
        told, other = decoding if server is setting.servers[1] else reversed(decoding)
        yield Held(setting, server, told, other, held.set, asked)


@BODIES
async def test_a_decode_engine_that_goes_down_during_the_prefill_is_not_asked(body):
    async with while_the_prefill_runs(body) as held:
        held.server.still = True
        await eventually(lambda: held.setting.gateway.down(held.server.url), "it is seen to be down")
        held.end()
        assert answered(body, *await held.ended)
        assert held.told.with_parameters == []
        assert held.other.with_parameters == [True]


@BODIES
@pytest.mark.parametrize("failure", [resets, talks_garbage, says(answer(b"{}", status="503 Busy"))])
async def test_a_decode_engine_that_dies_is_replaced(failure, body):
    second = Told(decodes)
    async with pair(prefills, failure, second) as setting:
        for _ in range(6):
            assert answered(body, *await setting.ask(body))
            line = await setting.settled()
            if line.attempts == 2:
                break
        else:
            pytest.fail("the engine that dies was never asked")
        assert second.with_parameters[-1], "the prompt is handed over anew"
        assert len(setting.prefill.bodies) > len(setting.gateway.lines), "parameters that were sent once are spent"


async def test_a_decode_engine_that_was_never_reached_leaves_the_parameters_for_another():
    async with while_the_prefill_runs(CHAT) as held:
        held.server.refuse()
        held.end()
        assert answered(CHAT, *await held.ended)
        assert len(held.setting.prefill.bodies) == 1
        assert held.other.with_parameters == [True]
        line = await held.setting.settled()
        assert (line.attempts, line.fallback) == (2, None)


@BODIES
@pytest.mark.parametrize("name", ["prefill-died", "prefill-head-timeout", "prefill-incomplete", "prefill-status"])
async def test_strict_makes_a_failed_hand_over_an_error(name, body):
    async with pair(PREFILL_FAILURES[name], strict=True, timeouts=within(name)) as setting:
        status, content = await setting.ask(body)
        assert status == (504 if "timeout" in name else 502)
        assert name in orjson.loads(content)["error"]["message"]
        assert b"127.0.0.1" not in content
        assert setting.decode.bodies == []
        await setting.settled()


async def test_strict_and_a_decode_leg_that_cannot_fetch():
    async with pair(decode=fetching_fails(says(FAILED)), strict=True) as setting:
        status, content = await setting.ask(CHAT)
        assert (status, setting.decode.with_parameters) == (502, [True])
        assert b"decode-error" in content
        await setting.settled()


async def test_a_request_that_kills_a_prefill_engine_may_kill_one_more_at_most():
    killed = []

    async def kills(connection: Connection, head: bytes, body: bytes) -> None:
        killed.append(connection)
        connection.reset()

    retries = RetrySettings(attempts=10, budget=1.0)
    async with pair(kills, kills, kills, kills, retries=retries) as setting:
        assert (await setting.ask(CHAT))[0] == 502
        assert len(killed) == 2
        await setting.settled()


async def test_what_is_booked_on_which_engine_and_when():
    prefilled, decoded = asyncio.Event(), asyncio.Event()

    async def first(connection: Connection, head: bytes, body: bytes) -> None:
        await prefilled.wait()
        await prefills(connection, head, body)

    async def second(connection: Connection, head: bytes, body: bytes) -> None:
        await decoded.wait()
        await decodes(connection, head, body)

    async with pair(first, second) as setting:
        gateway = setting.gateway.gateway
        p, d = gateway.fleet.endpoints(gateway.directory.runtimes[0].model)
        asked = asyncio.get_running_loop().create_task(setting.ask(CHAT))
        await eventually(lambda: setting.prefill.bodies, "the prefill runs")
        assert (p.load.requests, p.load.prefill_tokens > 0, p.load.kv_tokens > 0) == (1, True, True)
        assert (d.load.requests, d.load.prefill_tokens, d.load.kv_tokens > 0) == (1, 0, True)
        prefilled.set()
        await eventually(lambda: setting.decode.bodies, "the decode leg runs")
        assert (p.load.requests, p.load.prefill_tokens, p.load.kv_tokens) == (0, 0, 0)
        assert (d.load.requests, d.load.prefill_tokens, d.load.kv_tokens > 0) == (1, 0, True)
        decoded.set()
        assert answered(CHAT, *await asked)
        await setting.settled()


@pytest.mark.parametrize("connector", ["nixl", "mooncake"])
async def test_a_fallback_books_the_prompts_computing_where_it_happens(connector):
    """Mooncake's fails before a leg is sent: there is no bootstrap server."""
    decoded = asyncio.Event()

    async def second(connection: Connection, head: bytes, body: bytes) -> None:
        await decoded.wait()
        await decodes(connection, head, body)

    options = {"connector": connector, "bootstrap_port": 1}
    async with pair(resets, second, **options) as setting:
        gateway = setting.gateway.gateway
        p, d = gateway.fleet.endpoints(gateway.directory.runtimes[0].model)
        asked = asyncio.get_running_loop().create_task(setting.ask(TELLING))
        await eventually(lambda: setting.decode.bodies, "the decode leg runs")
        assert d.load.prefill_tokens > 0
        assert (p.load.requests, p.load.prefill_tokens, p.load.kv_tokens) == (0, 0, 0)
        decoded.set()
        assert answered(TELLING, *await asked)
        await setting.settled()
        prefills_sent = {("prefill", "bad"): 1} if connector == "nixl" else {}
        assert await setting.attempts() == {("decode", "ok"): 1, **prefills_sent}


@BODIES
@pytest.mark.parametrize("leg", ["prefill", "decode"])
async def test_a_client_that_leaves_cancels_the_leg_that_runs(leg, body):
    gone = asyncio.Event()

    async def waits(connection: Connection, head: bytes, request: bytes) -> None:
        await connection.gone()
        gone.set()
        connection.writer.close()

    posts = (waits, decodes) if leg == "prefill" else (prefills, waits)
    async with pair(*posts) as setting:
        told = setting.prefill if leg == "prefill" else setting.decode
        asked = asyncio.get_running_loop().create_task(setting.ask(body))
        await eventually(lambda: told.bodies, f"the {leg} leg runs")
        asked.cancel()
        await eventually(gone.is_set, "its connection is closed")
        line = await setting.settled()
        assert (line.outcome, line.phase) == ("cancelled", "prefill" if leg == "prefill" else "before-commit")
        assert bool(setting.decode.bodies) == (leg == "decode")
        phase = f'kvgate_client_disconnects_total{{model="sim",phase="{line.phase}"}} 1.0'
        assert phase in await setting.gateway.metrics()
