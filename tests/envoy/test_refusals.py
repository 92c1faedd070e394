"""What is not for an engine is answered by the picker, through Envoy; and what only Envoy sees, by Envoy."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gateway.commands.envoy.wanted import Mode
from tests.envoy.lab import SUBSET, Lab, lab
from tests.support.chat import chat
from tests.support.wait import until

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.parametrize("mode", Mode)
async def test_errors_have_the_body_that_clients_know(mode, service: Lab) -> None:
    front = await service.envoy(mode)
    before = service.served()
    for body, status in ((b"{no json", 400), (chat(model="nobody"), 404)):
        answer = await front.post(body)
        assert answer.status_code == status
        assert answer.headers["content-type"] == "application/json"
        assert answer.json()["error"]["message"]
        assert answer.headers["x-request-id"]
    assert service.served() == before
    await service.nothing_is_booked()


@pytest.mark.parametrize("mode", Mode)
async def test_a_subset_restricts_and_an_empty_one_is_refused(mode, service: Lab) -> None:
    front = await service.envoy(mode)
    for number, address in enumerate(service.addresses):
        before = service.served()
        for question in range(2):
            answer = await front.post(chat(group=20, question=question), **{SUBSET: f"10.0.0.1:1,{address}"})
            assert answer.status_code == 200, answer.text
        assert service.served()[number] == before[number] + 2
    answer = await front.post(chat(group=20), **{SUBSET: "10.0.0.1"})
    assert answer.status_code == 503
    assert answer.json()["error"]["message"]
    assert int(answer.headers["retry-after"]) > 0


async def test_a_client_cannot_choose(service: Lab) -> None:
    """By the header that names a destination."""
    front = await service.envoy()
    first = await front.post(chat(group=21, words=2000))
    assert first.status_code == 200
    before = service.served()
    for address in service.addresses:
        headers = {"x-gateway-destination-endpoint": address}
        assert (await front.post(chat(group=21, words=2000), **headers)).status_code == 200
    grown = [now - then for now, then in zip(service.served(), before, strict=True)]
    assert sorted(grown) == [0, 2], "both go to the engine that holds the chat"


@pytest.mark.parametrize("path", ["/sleep", "/metrics", "/v1/chat/completions/../../sleep", "/v1/load_lora_adapter"])
async def test_no_other_path_reaches_an_engine(path, service: Lab) -> None:
    front = await service.envoy()
    before = [len(engine.received) for engine in service.engines]
    answer = await front.post({}, path)
    assert answer.status_code == 404
    assert answer.json()["error"]["message"]
    got = [one.path for engine, seen in zip(service.engines, before, strict=True) for one in engine.received[seen:]]
    assert not [one for one in got if one not in ("/metrics", "/v1/models", "/health")], "what the picker itself asks"


async def test_a_model_at_its_limit_sheds(folder: Path) -> None:
    """With the status and the words of the proxy, and a time to wait."""
    async with lab(folder, engines=1) as made:
        [model] = made.settings["models"]
        model["limits"] = {"max_in_flight": 1, "max_queue": 0}
        made.write()
        await made.stop_picker()
        await made.start_picker()
        front = await made.envoy(Mode.ENDS)
        long = asyncio.create_task(front.post(chat(stream=True, max_tokens=20_000, ignore_eos=True)))

        async def booked() -> bool:
            return await made.total("kvgate_in_flight_requests") == 1

        await until(booked, "one is under way")
        answer = await front.post(chat(question=1))
        assert answer.status_code == 429
        assert int(answer.headers["retry-after"]) > 0
        assert answer.json()["error"]["message"]
        long.cancel()
        await asyncio.gather(long, return_exceptions=True)
        await made.nothing_is_booked()
