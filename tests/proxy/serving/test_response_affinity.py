"""Covers: gateway/proxy/serving/response_affinity.py, gateway/proxy/serving/kept_responses.py.

A request that goes on from a response goes to the engine that made it, or is refused with words.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import httpx
import orjson
import pytest

from gateway.core.clock import ManualClock
from gateway.errors import NoEndpoint, NotFound
from gateway.framework import Endpoint, Engine
from gateway.framework.fleet import Model
from gateway.proxy.serving import response_affinity
from gateway.proxy.serving.kept_responses import kept_at
from gateway.proxy.serving.response_affinity import LIFETIME, MAX_ID, TOGETHER, ResponseAffinity
from simulator.server import EngineServer
from tests.support.engines import engines
from tests.support.gateway import IN_TURN, Running, config_for, running
from tests.support.wait import eventually

PATH = "/v1/responses"


def endpoint(url: str, slot: int = 0, *, up: bool = True) -> Endpoint:
    return Endpoint(slot, f"{url}#{slot}", Model("m"), Engine(url, url, up=up), load=None, cost=None)


A, B = endpoint("http://a"), endpoint("http://b", 1)


def test_a_response_is_its_engines() -> None:
    responses = ResponseAffinity(ManualClock())
    responses.note("r1", A)
    responses.note("r2", B)
    assert responses.engine_of("r1", [A, B]) == "http://a"
    assert responses.engine_of("r2", [A, B]) == "http://b"
    responses.note("r1", B)  # a client may give two the same id
    assert responses.engine_of("r1", [A, B]) == "http://b"


def test_one_that_is_not_known_is_refused_unless_there_is_but_one_engine() -> None:
    responses = ResponseAffinity(ManualClock())
    with pytest.raises(NotFound, match="No engine is known to keep the response 'r1'") as caught:
        responses.engine_of("r1", [A, B])
    assert caught.value.param == "previous_response_id"
    assert responses.engine_of("r1", [A, endpoint("http://a", 2)]) == "http://a"


class Elsewhere:
    """What other replicas know."""

    def __init__(self, **homes: str) -> None:
        self.homes = homes
        self.asked: list[str] = []

    def note(self, response: str, url: str) -> None:
        self.homes[response] = url

    async def find(self, response: str) -> str | None:
        self.asked.append(response)
        return self.homes.get(response)


async def test_who_does_not_know_a_response_asks_the_other_replicas_once() -> None:
    homes = Elsewhere(r1="http://b")
    responses = ResponseAffinity(ManualClock(), homes)
    assert await responses.find("r1", [A, B]) == "http://b"
    assert await responses.find("r1", [A, B]) == "http://b"
    assert homes.asked == ["r1"]
    responses.note("r2", A)
    assert homes.homes["r2"] == "http://a"
    assert await responses.find("r2", [A, B]) == "http://a"
    assert await responses.find("r3", [A, endpoint("http://a", 2)]) == "http://a", "only this engine can have it"
    assert homes.asked == ["r1"]


@pytest.mark.parametrize("found", [None, "http://not-one-of-ours", ""])
async def test_what_the_others_do_not_know_or_is_no_engine_of_ours_is_not_found(found) -> None:
    responses = ResponseAffinity(ManualClock(), Elsewhere(**({} if found is None else {"r1": found})))
    with pytest.raises(NotFound, match="No engine is known"):
        await responses.find("r1", [A, B])
    with pytest.raises(NotFound):
        await responses.find("x" * (MAX_ID + 1), [A, B])
    assert len(responses) == 0


def test_one_of_another_model_is_refused() -> None:
    responses = ResponseAffinity(ManualClock())
    responses.note("r1", endpoint("http://c"))
    with pytest.raises(NotFound, match="does not serve this model"):
        responses.engine_of("r1", [A, B])


def test_what_is_not_asked_for_is_forgotten() -> None:
    clock = ManualClock()
    responses = ResponseAffinity(clock)
    responses.note("r1", A)
    clock.now += LIFETIME - 1
    assert responses.engine_of("r1", [A, B]) == "http://a"
    clock.now += LIFETIME - 1
    assert responses.engine_of("r1", [A, B]) == "http://a"
    clock.now += LIFETIME + 1
    with pytest.raises(NotFound):
        responses.engine_of("r1", [A, B])
    assert len(responses) == 0


def test_it_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_affinity, "MAX_KEPT", 3)
    responses = ResponseAffinity(ManualClock())
    for name in ("r1", "r2", "r3"):
        responses.note(name, A)
    responses.engine_of("r1", [A, B])
    responses.note("r4", A)
    responses.note("x" * (MAX_ID + 1), A)
    responses.note("", A)
    assert len(responses) == 3
    assert responses.engine_of("r1", [A, B]) == "http://a"
    with pytest.raises(NotFound):
        responses.engine_of("r2", [A, B])


def test_an_engine_that_is_down_is_named_as_the_reason() -> None:
    second = endpoint("http://a", 2)
    assert kept_at("http://a", [A, B, second]) == [A, second]
    for endpoints in ([endpoint("http://a", up=False), B], [B]):
        with pytest.raises(NoEndpoint, match="is down") as caught:
            kept_at("http://a", endpoints)
        assert caught.value.retry_after


@contextlib.asynccontextmanager
async def two_engines() -> AsyncIterator[tuple[list[EngineServer], Running]]:
    async with engines(2) as servers:
        config = config_for(*(server.url for server in servers), **IN_TURN)
        async with running(config) as gateway:
            await eventually(
                lambda: not any(gateway.down(server.url) for server in servers), what="both engines are up"
            )
            yield servers, gateway


async def ask(gateway: Running, **body: object) -> httpx.Response:
    return await gateway.client.post(PATH, json={"model": "sim", "input": "hi", "max_output_tokens": 2, **body})


def id_of(reply: httpx.Response) -> str:
    assert reply.status_code == 200, reply.text
    if not reply.headers["content-type"].startswith("text/event-stream"):
        return str(reply.json()["id"])
    first = next(line for line in reply.text.splitlines() if line.startswith("data:"))
    return str(orjson.loads(first.removeprefix("data:"))["response"]["id"])


@pytest.mark.parametrize("stream", [False, True])
async def test_turns_stay_with_the_engine_that_began(stream: bool) -> None:
    async with two_engines() as (_, gateway):
        for _ in range(2):  # once from each engine: they are asked in turn
            response = id_of(await ask(gateway, stream=stream))
            home = gateway.lines[-1].endpoint
            for _ in range(3):
                response = id_of(await ask(gateway, stream=stream, previous_response_id=response))
                assert gateway.lines[-1].endpoint == home
                assert gateway.lines[-1].exact is False
            await ask(gateway, input="between")
        assert gateway.idle()


async def test_what_nobody_keeps_is_refused_before_it_is_sent() -> None:
    async with two_engines() as (servers, gateway):
        reply = await ask(gateway, previous_response_id="resp_unknown")
        assert reply.status_code == 404
        error = reply.json()["error"]
        assert error["param"] == "previous_response_id"
        assert "send the conversation as input" in error["message"]
        response = id_of(await ask(gateway, store=False))
        assert (await ask(gateway, previous_response_id=response)).status_code == 404
        response = id_of(await ask(gateway))
        home = gateway.lines[-1].endpoint
        gone = next(server for server in servers if str(home).startswith(server.url.removeprefix("http://")))
        await gone.close()
        await eventually(lambda: gateway.down(gone.url), what="the engine is down")
        reply = await ask(gateway, previous_response_id=response)
        assert reply.status_code == 503
        assert "engine that keeps the response" in reply.json()["error"]["message"]
        assert reply.headers["retry-after"]
        assert (await ask(gateway)).status_code == 200


def test_workers_tell_each_other_and_one_that_starts_hears_all() -> None:
    clock = ManualClock()
    second = ResponseAffinity(clock)
    first = ResponseAffinity(clock, None, second.on_heard)
    first.note("r1", A)
    assert second.engine_of("r1", [A, B]) == "http://a"
    for number in range(TOGETHER):
        first.note(f"n{number}", B)
    clock.now += LIFETIME / 2
    third = ResponseAffinity(clock)
    third.note("r1", B)  # it is newer
    notes = list(first.remembered())
    assert len(notes) == 2
    for note in notes:
        third.on_heard(note)
    assert third.engine_of("r1", [A, B]) == "http://b"
    assert third.engine_of("n3", [A, B]) == "http://b"
    assert len(third) == TOGETHER + 1
    clock.now += LIFETIME / 2 + 1
    with pytest.raises(NotFound):
        third.engine_of("n4", [A, B])
