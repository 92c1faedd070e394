"""From a client's bytes to a call that can be placed, without sockets."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from gateway.api.routes import ROUTES
from gateway.core.prompt import Prompt, estimate
from gateway.errors import ClientError, Exhausted, NotFound, Saturated
from gateway.flow.settings import FlowSettings
from gateway.proxy.serving.timeline import Phase
from gateway.proxy.settings import ListenSettings, RetrySettings, TimeoutSettings
from tests.support.chat import CHAT, STREAMED
from tests.support.in_memory import MemoryClient
from tests.support.scene import Scene

RESPONSES = ROUTES["/v1/responses"]
ONE = FlowSettings(max_in_flight=1, max_queue=1)


async def test_it_ends_with_a_call_that_can_be_placed():
    async with Scene() as scene:
        scene.clock.now = 5.0
        life, client = scene.request(), MemoryClient(STREAMED, headers=[("X-Team", "a")])
        await life.read(client)
        call = life.call
        assert (call.id, call.route.path, call.sequences, call.pinned_url) == ("id", "/v1/chat/completions", 1, "")
        assert call.headers == client.headers
        assert call.runtime is scene.runtime
        request = call.request
        assert (request.stream, request.arrived, request.headers["x-team"]) == (True, 5.0, "a")
        assert request.prompt_tokens == call.prompt.count > 0
        assert (life.timeline.phase, life.timeline.received_at) == (Phase.BEFORE_COMMIT, 5.0)
        assert scene.memory.held == len(client.body)
        assert scene.runtime.admission.in_flight == 1
        life.settle()
        scene.has_all_back()


async def test_a_body_is_received_within_the_settings():
    listen, timeouts = ListenSettings(max_body=100_000), TimeoutSettings(receive=7)
    async with Scene(listen=listen, timeouts=timeouts) as scene:
        life, client = scene.request(), MemoryClient(CHAT)
        asked: list[dict[str, Any]] = []
        receive = client.receive

        async def noted(**wanted: Any) -> bytes:
            asked.append(wanted)
            return await receive(**wanted)

        client.receive = noted
        await life.read(client)
        assert asked == [{"limit": 100_000, "timeout": 7, "share": life.share}]
        life.settle()


async def test_the_time_of_its_arrival_is_not_ours():
    async with Scene() as scene:
        arrives = asyncio.Event()
        life = scene.request()
        reading = asyncio.create_task(life.read(MemoryClient(CHAT, arrives=arrives)))
        await scene.turn()
        assert life.timeline.phase is Phase.RECEIVING
        scene.clock.now += 9
        arrives.set()
        await reading
        assert life.timeline.received_at == 9
        life.settle()


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({**CHAT, "model": "other"}, NotFound),
        ({"model": "sim"}, ClientError),
        ({**CHAT, "messages": 1}, ClientError),
    ],
)
async def test_what_cannot_be_asked_takes_no_permit(body, error):
    async with Scene() as scene:
        life = scene.request()
        with pytest.raises(error):
            await life.read(MemoryClient(body))
        assert (life.timeline.request, life.permit, life.timeline.phase) == (None, None, Phase.RECEIVING)
        life.settle()
        scene.has_all_back()


async def test_a_body_for_which_there_is_no_room():
    async with Scene() as scene:
        scene.memory.allow(10)
        life = scene.request()
        with pytest.raises(Exhausted):
            await life.read(MemoryClient(CHAT))
        life.settle()
        scene.has_all_back()


# Its turn


async def test_it_waits_for_its_turn():
    async with Scene(limits=ONE) as scene:
        permit = scene.runtime.admission.try_acquire()
        life = scene.request()
        reading = asyncio.create_task(life.read(MemoryClient(CHAT)))
        await scene.turn()
        assert (life.timeline.phase, scene.runtime.admission.waiting) == (Phase.QUEUED, 1)
        scene.clock.now += 2.5
        permit.release()
        await reading
        assert (life.timeline.queue_wait, life.timeline.phase) == (2.5, Phase.BEFORE_COMMIT)
        life.settle()
        scene.has_all_back()


async def test_a_full_queue_refuses_it():
    async with Scene(limits=FlowSettings(max_in_flight=1, max_queue=0)) as scene:
        permit = scene.runtime.admission.try_acquire()
        life = scene.request()
        with pytest.raises(Saturated):
            await life.read(MemoryClient(CHAT))
        assert (life.permit, life.timeline.phase) == (None, Phase.QUEUED)
        life.settle()
        permit.release()
        scene.has_all_back()


async def test_each_request_pays_into_the_budget_for_retries():
    async with Scene(retries=RetrySettings(budget=0.5)) as scene:
        budget = scene.runtime.budget
        while budget.withdraw():
            pass
        for expected in (False, True):
            life = scene.request()
            await life.read(MemoryClient(CHAT))
            life.settle()
            assert budget.withdraw() is expected


# Its tokens


async def test_a_tokenizer_makes_its_ids(tokenizer):
    async with Scene(tokenizer=tokenizer) as scene:
        await scene.runtime.tokens.load()
        life = scene.request()
        await life.read(MemoryClient(CHAT))
        call = life.call
        assert call.own_tokens == call.prompt.count == len(call.request.token_ids) > 0
        assert call.request.exact
        life.settle()
        scene.has_all_back()


@pytest.mark.parametrize(
    ("headers", "same"),
    [
        ([], "192.0.2.1"),
        ([("Authorization", "Bearer secret")], None),
        ([("X-Api-Key", "secret")], None),
    ],
)
async def test_the_tokenizer_is_told_whose_request_it_is(headers, same):
    async with Scene() as scene:
        names: list[str] = []

        async def tokenize(given: object, *, client: Any, longest_context: Any) -> Prompt:
            names.append(client())
            return estimate(b"x" * 100, "test")

        scene.runtime.tokens.tokenize = tokenize
        life = scene.request()
        await life.read(MemoryClient(CHAT, headers=headers))
        assert life.call.prompt.count == math.ceil(100 / 4)
        [name] = names
        assert "secret" not in name
        assert (name == same) is (same is not None)
        life.settle()


# Where it must go


async def test_a_response_that_goes_on_goes_to_its_engine():
    async with Scene() as scene:
        scene.responses.note("resp_1", scene.endpoints[1])
        life = scene.request(RESPONSES)
        body = {"model": "sim", "input": "go on", "previous_response_id": "resp_1"}
        await life.read(MemoryClient(body))
        assert (life.call.pinned_url, life.call.request.bound) == ("http://e1:1", True)
        life.settle()


async def test_a_response_that_nobody_keeps_is_not_found():
    async with Scene() as scene:
        life = scene.request(RESPONSES)
        body = {"model": "sim", "input": "go on", "previous_response_id": "resp_1"}
        with pytest.raises(NotFound):
            await life.read(MemoryClient(body))
        assert life.permit is None
        life.settle()
        scene.has_all_back()
