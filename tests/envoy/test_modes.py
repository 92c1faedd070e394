"""Every mode in which Envoy can ask: what an engine gets, what a client gets, and what the picker knows afterwards."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from gateway.commands.envoy.wanted import Mode
from tests.envoy.lab import CHAT, Front, Lab
from tests.envoy.versions import NEWEST, OLDEST
from tests.support.chat import chat
from tests.support.wait import until

pytestmark = pytest.mark.asyncio(loop_scope="session")

TELLS = (Mode.ENDS, Mode.FULL, Mode.OBSERVED)
"""Those in which the picker hears of an answer."""

HEARS_ALL = (Mode.FULL, Mode.OBSERVED)
"""Those in which it hears all of it."""


async def settled(service: Lab, answer: httpx.Response) -> dict[str, Any]:
    """The decision about a request, once it says what became of it."""
    found: list[dict[str, Any]] = []

    async def known() -> bool:
        id = answer.headers["x-request-id"]
        found[:] = [one for one in await service.decisions() if one["request_id"] == id]
        return bool(found) and found[0]["outcome"] is not None

    await until(known, "it is settled")
    return found[0]


async def asked(service: Lab, front: Front, body: dict[str, Any]) -> tuple[httpx.Response, dict[str, Any], int]:
    """An answer, the decision about it, and which engine has got it."""
    before = service.served()
    answer = await front.post(body)
    assert answer.status_code == 200, answer.text
    grown = [number for number, (now, then) in enumerate(zip(service.served(), before, strict=True)) if now > then]
    assert len(grown) == 1
    return answer, await settled(service, answer), grown[0]


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("version", [NEWEST, OLDEST])
@pytest.mark.parametrize("mode", Mode)
async def test_a_chat_is_answered_by_the_engine_that_was_decided(mode, version, streams, service: Lab) -> None:
    front = await service.envoy(mode, version=version)
    body = chat(group=1, stream=streams, max_tokens=5)
    answer, decision, number = await asked(service, front, body)
    engine = service.engines[number]
    assert decision["plan"]["decode"] == service.addresses[number]
    got = next(one for one in reversed(engine.received) if one.path == CHAT)
    wanted = json.loads(got.body)
    assert {key: wanted[key] for key in body} == body, "as the client has sent it"
    assert ("content-length" in got.headers) == (mode is Mode.BUFFERED), "Envoy frames a body anew in full duplex"
    assert "usage" in answer.text if not streams else answer.text.endswith("data: [DONE]\n\n")
    await service.nothing_is_booked()


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("mode", HEARS_ALL)
async def test_the_usage_is_learned_and_the_client_sees_none_that_it_did_not_want(mode, streams, service: Lab) -> None:
    front = await service.envoy(mode)
    wants = mode is Mode.OBSERVED and streams  # nothing can be taken out of what is only observed
    more = {"stream_options": {"include_usage": True}} if wants else {}
    answer, decision, _ = await asked(service, front, chat(group=2, stream=streams, max_tokens=7, **more))
    assert decision["outcome"]["output_tokens"] == 7
    assert decision["outcome"]["outcome"] == "ok"
    if streams:
        assert ('"usage"' in answer.text) == wants
        assert decision["real"]["ttft"] is not None


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("mode", [one for one in Mode if one not in HEARS_ALL])
async def test_what_is_not_heard_is_not_learned(mode, streams, service: Lab) -> None:
    front = await service.envoy(mode)
    _, decision, _ = await asked(service, front, chat(group=3, stream=streams, max_tokens=7))
    assert decision["outcome"]["output_tokens"] is None
    # A call in `request` ends with the request: of the answer nothing is heard, not even its end.
    assert decision["outcome"]["outcome"] == ("unheard" if mode is Mode.REQUEST else "ended")
    await service.nothing_is_booked()


@pytest.mark.parametrize("mode", TELLS)
async def test_work_is_given_back_when_the_answer_ends(mode, service: Lab) -> None:
    """And not when it is predicted to: this answer takes some ten times as long."""
    front = await service.envoy(mode)
    async with front.client.stream(
        "POST", front.url + CHAT, json=chat(group=4, stream=True, max_tokens=1000, ignore_eos=True)
    ) as answer:
        assert answer.status_code == 200
        parts = answer.aiter_raw()
        await anext(parts)
        assert await service.total("kvgate_in_flight_requests") == 1
        async for _ in parts:
            pass
    await service.nothing_is_booked()


@pytest.mark.parametrize("mode", TELLS)
async def test_a_client_that_leaves_ends_the_work(mode, service: Lab) -> None:
    front = await service.envoy(mode)
    aborted = sum(engine.aborted for engine in service.engines)
    async with front.client.stream(
        "POST", front.url + CHAT, json=chat(group=5, stream=True, max_tokens=20_000, ignore_eos=True)
    ) as answer:
        await anext(answer.aiter_raw())
    await service.nothing_is_booked()

    async def told() -> bool:
        return sum(engine.aborted for engine in service.engines) == aborted + 1

    await until(told, "the engine hears of it")


async def test_a_request_without_a_body_goes_to_any_engine(service: Lab) -> None:
    front = await service.envoy()
    for _ in range(2):
        answer = await front.client.get(front.url + "/v1/models")
        assert answer.status_code == 200
        assert [one["id"] for one in answer.json()["data"]] == ["sim"]
    await service.nothing_is_booked()


async def test_the_second_turn_of_a_chat_goes_to_the_engine_that_holds_the_first(service: Lab) -> None:
    front = await service.envoy()
    _, _, first = await asked(service, front, chat(group=6, words=2000))
    for question in range(1, 4):
        _, decision, number = await asked(service, front, chat(group=6, question=question, words=2000))
        assert number == first
        assert decision["predicted"]["cached_tokens"] > 1000
