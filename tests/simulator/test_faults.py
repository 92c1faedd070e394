"""Faults as a client meets them, each as often as it is meant to come."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from simulator.faults import FaultKind, Faults
from simulator.transfer.parameters import Leg
from tests.simulator.conftest import Running
from tests.support.wait import eventually

CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 8, "ignore_eos": True}
STREAM = {**BODY, "stream": True}


class TestFaults:
    def test_a_fault_comes_as_many_times_as_it_says(self) -> None:
        faults = Faults()
        faults.inject("hang", times=2)
        taken = [faults.take("POST", CHAT) for _ in range(3)]
        assert [fault is not None for fault in taken] == [True, True, False]
        assert len(faults) == 0

    def test_a_fault_without_times_stays_until_it_is_cleared(self) -> None:
        faults = Faults()
        faults.inject(FaultKind.HANG)
        assert all(faults.take("POST", CHAT) for _ in range(9))
        faults.clear()
        assert faults.take("POST", CHAT) is None

    def test_a_fault_is_for_posts_or_for_a_path(self) -> None:
        faults = Faults()
        faults.inject("status", times=1)
        assert faults.take("GET", "/metrics") is None
        faults.inject("hang", path="/metrics", times=1)
        taken = faults.take("GET", "/metrics")
        assert taken is not None
        assert taken.kind is FaultKind.HANG

    def test_a_fault_is_for_a_leg(self) -> None:
        faults = Faults()
        faults.inject("hang", leg="decode", times=1)
        faults.inject("no-params", times=1)
        legs: list[Leg | None] = [None, Leg.PREFILL, Leg.DECODE]
        taken = [faults.take("POST", CHAT, lambda leg=leg: leg) for leg in legs]  # type: ignore[misc]
        assert [fault and fault.kind for fault in taken] == [None, FaultKind.NO_PARAMS, FaultKind.HANG]

    def test_the_oldest_comes_first(self) -> None:
        faults = Faults()
        faults.inject("drop", times=1)
        faults.inject("hang", times=1)
        kinds = [fault.kind for fault in (faults.take("POST", CHAT), faults.take("POST", CHAT)) if fault]
        assert kinds == [FaultKind.DROP, FaultKind.HANG]

    @pytest.mark.parametrize(
        ("kind", "options"),
        [
            ("nope", {}),
            ("hang", {"time": 1}),
            ("hang", {"times": 0}),
            ("slow", {"seconds": -1}),
            ("status", {"status": 9}),
            ("hang", {"leg": "middle time"}),
        ],
    )
    def test_a_mistake_is_named(self, kind: str, options: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match=r"nope|time|seconds|status"):
            Faults().inject(kind, **options)


async def status_after(engine: Running, body: dict[str, Any] = BODY) -> int:
    return (await engine.client.post(CHAT, json=body)).status_code


@pytest.mark.parametrize("kind", ["drop", "garbage"])
@pytest.mark.parametrize("body", [BODY, STREAM])
async def test_no_http_answer(engine: Running, kind: str, body: dict[str, Any]) -> None:
    engine.server.faults.inject(kind, times=1)
    with pytest.raises(httpx.RemoteProtocolError):
        await engine.client.post(CHAT, json=body)
    assert await status_after(engine, body) == 200
    assert len(engine.server.received) == 2


@pytest.mark.parametrize(("kind", "events"), [("hang", 0), ("hang-after", 2)])
async def test_hanging_lasts_until_the_client_leaves(engine: Running, kind: str, events: int) -> None:
    engine.server.faults.inject(kind, times=1, events=events)
    lines: list[str] = []

    async def read() -> None:
        async with engine.client.stream("POST", CHAT, json=STREAM) as answer:
            async for line in answer.aiter_lines():
                lines.append(line)  # noqa: PERF401 - what came before the break must be kept

    task = asyncio.create_task(read())
    await eventually(lambda: engine.server.received and len(lines) == 2 * events, "the head or the events")
    await eventually(lambda: engine.server.running == 0, "the engine has long ended")
    assert not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert await status_after(engine, STREAM) == 200


async def test_a_hung_engine_still_computes_and_the_departure_aborts_it(engine: Running) -> None:
    engine.server.faults.inject("hang-after", times=1, events=1)
    body = {**STREAM, "max_tokens": 20_000}
    async with engine.client.stream("POST", CHAT, json=body) as answer:
        await anext(answer.aiter_lines())
        assert engine.server.running == 1
    await eventually(lambda: engine.server.running == 0, "the abort")
    assert engine.server.aborted == 1


@pytest.mark.parametrize("events", [0, 1, 3])
async def test_closing_after_some_events(engine: Running, events: int) -> None:
    engine.server.faults.inject("close-after", times=1, events=events)
    lines: list[str] = []
    with pytest.raises(httpx.RemoteProtocolError):
        async with engine.client.stream("POST", CHAT, json=STREAM) as answer:
            assert answer.status_code == 200
            async for line in answer.aiter_lines():
                lines.append(line)  # noqa: PERF401 - what came before the break must be kept
    assert len([line for line in lines if line]) == events


@pytest.mark.parametrize("kind", ["close-after"])
async def test_closing_in_the_middle_of_a_body(engine: Running, kind: str) -> None:
    engine.server.faults.inject(kind, times=1)
    with pytest.raises(httpx.RemoteProtocolError, match="received"):
        await engine.client.post(CHAT, json=BODY)


async def test_a_status_with_a_body(engine: Running) -> None:
    engine.server.faults.inject("status", times=1, status=502, body='{"detail":"x"}')
    answer = await engine.client.post(CHAT, json=BODY)
    assert (answer.status_code, answer.json()) == (502, {"detail": "x"})
    assert await status_after(engine) == 200


async def test_admission_is_the_real_503(engine: Running) -> None:
    engine.server.faults.inject("admission", times=1)
    answer = await engine.client.post(CHAT, json=BODY)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["code"]) == (503, "Service Unavailable", 503)
    assert "different instance" in error["message"]
    assert "retry-after" not in answer.headers


async def test_an_error_as_the_first_event(engine: Running) -> None:
    engine.server.faults.inject("error-event", times=3)
    error = {"message": "Internal server error", "type": "InternalServerError", "param": None, "code": 500}
    answer = await engine.client.post(CHAT, json=STREAM)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    events = answer.text.split("\n\n")
    assert json.loads(events[0].removeprefix("data: ")) == {"error": error}
    assert events[1:] == ["data: [DONE]", ""]
    answer = await engine.client.post(CHAT, json=BODY)
    assert (answer.status_code, answer.json()) == (500, {"error": error})
    answer = await engine.client.post("/v1/messages", json=STREAM)
    assert answer.text.startswith("event: error\ndata: ")


@pytest.mark.parametrize("body", [BODY, STREAM])
async def test_trickling_and_slowness_lose_nothing(engine: Running, body: dict[str, Any]) -> None:
    expected = (await engine.client.post(CHAT, json=body)).text
    for kind, options in (("trickle", {"events": 7}), ("slow", {"seconds": 0.01})):
        engine.server.faults.inject(kind, times=1, **options)
        answer = await engine.client.post(CHAT, json=body, headers={"X-Request-Id": "x"})
        assert len(answer.text) <= len(expected)
        if body is STREAM:
            assert answer.text.endswith("data: [DONE]\n\n")
            assert answer.text.count("\n\n") == expected.count("\n\n")
        else:
            assert answer.json()["usage"]["completion_tokens"] == 8


async def test_death_takes_every_connection(engine: Running) -> None:
    long = asyncio.create_task(engine.client.post(CHAT, json={**BODY, "max_tokens": 30_000}))
    await eventually(lambda: engine.server.running == 1, "the long answer runs")
    engine.server.faults.inject("die", times=1)
    for request in (engine.client.post(CHAT, json=BODY), long):
        with pytest.raises(httpx.RemoteProtocolError):
            await request
    with pytest.raises(httpx.ConnectError):
        await engine.client.get("/health")
    assert engine.server.died.is_set()


async def test_refused_connections_are_accepted_again_on_the_same_port(engine: Running) -> None:
    assert (await engine.client.get("/health")).status_code == 200
    engine.server.faults.inject("refuse")
    async with httpx.AsyncClient(base_url=engine.server.url, verify=False) as fresh:
        with pytest.raises(httpx.ConnectError):
            await fresh.get("/health")
    engine.server.faults.clear()

    await answers_again(engine)


async def answers_again(engine: Running) -> None:
    async with asyncio.timeout(30):
        while True:
            try:
                assert (await engine.client.get("/health")).status_code == 200
                return
            except httpx.TransportError:
                await asyncio.sleep(0.01)


async def test_refusing_for_a_while_ends_by_itself(engine: Running) -> None:
    answer = await engine.client.post("/simulator/faults", json={"kind": "refuse", "seconds": 0.05})
    assert answer.status_code == 200
    await answers_again(engine)


async def test_faults_over_http(engine: Running) -> None:
    faults = engine.client.post("/simulator/faults", json={"kind": "status", "status": 503})
    assert (await faults).json() == {"faults": 1}
    assert await status_after(engine) == 503
    assert (await engine.client.get("/simulator/faults")).json() == {"faults": 1}
    assert (await engine.client.delete("/simulator/faults")).json() == {"faults": 0}
    assert await status_after(engine) == 200


@pytest.mark.parametrize("body", [{}, {"kind": "x"}, {"kind": "hang", "y": 1}, {"kind": "hang", "times": "a"}])
async def test_a_wrong_fault_over_http_is_a_400(engine: Running, body: dict[str, Any]) -> None:
    assert (await engine.client.post("/simulator/faults", json=body)).status_code == 400
