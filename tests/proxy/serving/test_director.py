"""Covers: gateway/proxy/serving/director.py, gateway/proxy/serving/front.py.

The order of a request's verbs, and what is given back, whatever happens to it and when; without sockets."""

from __future__ import annotations

from functools import partial
from typing import Any

import orjson
import pytest

from gateway.errors import BodyTooLarge, NoEndpoint, UpstreamError
from gateway.flow.settings import FlowSettings
from gateway.proxy.settings import RetrySettings
from tests.support.chat import CHAT, COMPLETE, DONE, ROLE, STREAMED, TELLING, WORD
from tests.support.in_memory import MemoryClient
from tests.support.scene import CHAT as ROUTE
from tests.support.scene import Scene, recorded
from tests.support.wait import eventually
from tests.support.wire import answer, chunked

BUSY = answer(b'{"error": "busy"}', status="503 Service Unavailable", extra=b"X-Engine: full\r\n")


def reset() -> ConnectionResetError:
    return ConnectionResetError("reset")


# The order


class Passing:
    """Passes everything on. Its methods can be replaced; those of a compiled object cannot."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


async def test_the_verbs_in_their_order():
    async with Scene() as scene:
        log: list[str] = []
        client, runtime = MemoryClient(CHAT), scene.runtime
        recorded(log, client, "receive", "receive")
        recorded(log, runtime.admission, "try_acquire", "admit")
        recorded(log, runtime.tokens, "tokenize", "tokenize")
        index = Passing(runtime.index)
        object.__setattr__(runtime, "index", index)
        recorded(log, index, "match", "match")
        recorded(log, scene.scheduler, "schedule", "schedule")
        recorded(log, scene.forwarder, "forward", "forward")
        recorded(log, client, "reply", "relay")
        recorded(log, scene.notes, "settled", "settle")
        task = scene.ask(client)
        side = await scene.engines.request()
        assert sum(endpoint.load.requests for endpoint in scene.endpoints) == 1, "reserved before it is sent"
        side.say(answer(COMPLETE))
        await task
        assert log == ["receive", "admit", "tokenize", "match", "schedule", "forward", "relay", "settle"]
        scene.has_all_back()


async def test_a_whole_answer_passes_unchanged():
    async with Scene() as scene:
        client = await scene.answered(CHAT, COMPLETE)
        reply = client.answer
        assert (reply.status, reply.length, reply.body, reply.ended) == (200, len(COMPLETE), COMPLETE, True)
        assert ("x-request-id", "id") in reply.headers
        line = scene.line
        assert (line.outcome, line.status, line.phase, line.output_tokens) == ("ok", 200, "done", 1)
        assert scene.notes.legs == [("e0:1", "decode", "ok")]
        scene.has_all_back()


async def test_a_stream_passes_unchanged():
    async with Scene() as scene:
        client = MemoryClient(TELLING)
        task, side, reply = await scene.begun(client, ROLE)
        side.say(chunked(WORD, end=False))
        side.say(chunked(WORD, DONE))
        await task
        assert (reply.status, reply.length, reply.body) == (200, None, ROLE + WORD + WORD + DONE)
        assert (reply.ended, reply.was_cut, reply.attended) == (True, False, False)
        assert (scene.line.outcome, scene.line.phase, scene.line.output_tokens) == ("ok", "done", 2)
        scene.has_all_back()


async def test_the_engine_is_free_before_the_client_can_see_the_end():
    """Who asks at once finds what this one took free."""
    async with Scene(1) as scene:
        task, side, reply = await scene.begun(MemoryClient(TELLING), ROLE)
        seen: list[tuple[int, bool]] = []
        send = reply.send

        def look(data: bytes, last: bool) -> None:
            seen.append((scene.endpoints[0].load.requests, reply.attended))
            send(data, last)

        reply.send = look
        side.say(chunked(WORD, DONE))
        assert seen == [(0, False)], "there is nothing left to stop, either"
        await task


@pytest.mark.parametrize("stream", [False, True])
async def test_the_fleet_is_told_of_an_answer_that_is_complete(stream):
    async with Scene(1) as scene:
        told: list[str] = []
        recorded(told, scene.fleet, "report_complete", "complete")
        if stream:
            task, side, _ = await scene.begun(MemoryClient(TELLING), ROLE)
            assert told == []
            side.say(chunked(WORD, DONE))
            await task
        else:
            await scene.answered(CHAT, COMPLETE)
        assert told == ["complete"]


async def test_the_fleet_is_not_told_of_one_that_broke():
    async with Scene(1) as scene:
        told: list[str] = []
        recorded(told, scene.fleet, "report_complete", "complete")
        task, side, _ = await scene.begun(MemoryClient(TELLING), ROLE)
        side.end(reset())
        await task
        assert told == []


async def test_what_need_not_be_waited_for_is_one_step():
    """From the body's last byte to the write to the engine, on a kept connection: stepped by hand, it first waits for
    the engine's answer."""
    async with Scene(1) as scene:
        await scene.answered(CHAT, COMPLETE)
        handling = scene.director.handle(MemoryClient(CHAT), ROUTE, "id")
        waits_for = handling.send(None)
        assert scene.engines.unanswered == 1
        assert len(scene.engines.sides) == 1, "the connection was kept"
        (await scene.engines.request()).say(answer(COMPLETE))
        assert waits_for.done(), "the answer is all that it waited for"
        with pytest.raises(StopIteration):
            handling.send(None)
        scene.has_all_back(2)


# Another attempt


async def test_a_refused_connection_is_retried_elsewhere_for_free():
    async with Scene(retries=RetrySettings(attempts=1, budget=0.0)) as scene:
        scene.engines.refusing.add("e0")
        client = await scene.answered(CHAT, COMPLETE)
        assert client.answer.body == COMPLETE
        assert [side.host for side in scene.engines.sides] == ["e1"]
        assert scene.notes.legs == [("e0:1", "decode", "refused"), ("e1:1", "decode", "ok")]
        assert (scene.line.attempts, scene.line.endpoint, scene.line.outcome) == (2, "e1:1", "ok")
        assert not scene.endpoints[0].engine.up, "the fleet was told"
        scene.has_all_back()


async def test_an_engines_503_is_retried_elsewhere():
    async with Scene() as scene:
        client = MemoryClient(CHAT)
        task = scene.ask(client)
        (await scene.engines.request()).say(BUSY)
        second = await scene.engines.request()
        assert [endpoint.load.requests for endpoint in scene.endpoints] == [0, 1], "the first was given back"
        second.say(answer(COMPLETE))
        await task
        assert client.answer.body == COMPLETE
        assert [leg[2] for leg in scene.notes.legs] == ["status-503", "ok"]
        scene.has_all_back()


@pytest.mark.parametrize("count", [1, 2, 3])
async def test_a_held_error_is_relayed_where_no_endpoint_or_attempt_is_left(count):
    async with Scene(count) as scene:
        client = MemoryClient(CHAT)
        task = scene.ask(client)
        tries = min(count, scene.config.retries.attempts)
        for _ in range(tries):
            (await scene.engines.request()).say(BUSY)
        await task
        assert (client.answer.status, client.answer.body) == (503, b'{"error": "busy"}')
        assert ("x-engine", "full") in client.answer.headers
        assert (scene.line.status, scene.line.outcome, scene.line.attempts) == (503, "engine_error", tries)
        scene.has_all_back()


async def test_of_several_held_errors_only_the_last_is_kept():
    """Each was counted as held until the request ended."""
    async with Scene(3, retries=RetrySettings(attempts=3, budget=1.0)) as scene:
        client = MemoryClient(CHAT)
        task, held = scene.ask(client), []
        for _ in range(2):
            (await scene.engines.request()).say(BUSY)
            await eventually(lambda: scene.engines.unanswered, "the next attempt is sent")
            held.append(scene.memory.held)
        assert held[0] == held[1] > len(client.body)
        (await scene.engines.request()).say(BUSY)
        await task
        assert client.answer.status == 503
        scene.has_all_back()


async def test_a_held_error_is_relayed_although_the_next_endpoint_refuses():
    async with Scene() as scene:
        scene.engines.refusing.add("e1")
        client = MemoryClient(CHAT)
        task = scene.ask(client)
        (await scene.engines.request()).say(BUSY)
        await task
        assert client.answer.status == 503
        assert [leg[2] for leg in scene.notes.legs] == ["status-503", "refused"]
        scene.has_all_back()


async def test_a_request_that_kills_engines_kills_two():
    async with Scene(3) as scene:
        task = scene.ask(MemoryClient(CHAT))
        for _ in range(2):
            (await scene.engines.request()).end(reset())
        with pytest.raises(UpstreamError, match="died"):
            await task
        assert len(scene.engines.sides) == 2
        assert [leg[2] for leg in scene.notes.legs] == ["died", "died"]
        scene.has_all_back()


async def test_what_an_engine_may_have_seen_does_not_stand_by_although_the_next_one_refused_it():
    async with Scene(limits=FlowSettings(no_endpoint_timeout=300.0)) as scene:
        standby = scene.runtime.standby
        standby.usable = partial(scene.directory.usable, scene.runtime.model)
        scene.engines.refusing.add("e1")
        task = scene.ask(MemoryClient(CHAT))
        side = await scene.engines.request()
        scene.endpoints[0].engine.up = False
        side.end(reset())
        await eventually(lambda: task.done() or standby.waiting, "it has ended, or stands by")
        assert standby.waiting == 0
        with pytest.raises(NoEndpoint):
            await task
        assert [leg[2] for leg in scene.notes.legs] == ["died", "refused"]
        scene.has_all_back()


async def test_no_endpoint_from_the_beginning():
    async with Scene() as scene:
        for endpoint in scene.endpoints:
            endpoint.engine.up = False
        with pytest.raises(NoEndpoint):
            await scene.ask(MemoryClient(CHAT))
        assert (scene.line.status, scene.line.attempts, scene.notes.legs) == (503, 0, [])
        [decision] = scene.decisions
        assert decision.settled is scene.line
        scene.has_all_back()


async def test_all_refuse():
    async with Scene() as scene:
        scene.engines.refusing |= {"e0", "e1"}
        with pytest.raises(NoEndpoint):
            await scene.ask(MemoryClient(CHAT))
        assert [leg[2] for leg in scene.notes.legs] == ["refused", "refused"]
        scene.has_all_back()


# What goes wrong here


async def test_a_defect_gives_all_back_and_says_so():
    async with Scene() as scene:

        def broken(*_: object) -> None:
            raise ZeroDivisionError

        scene.scheduler.schedule = broken
        with pytest.raises(ZeroDivisionError):
            await scene.ask(MemoryClient(CHAT))
        assert (scene.line.status, scene.line.outcome) == (500, "bug")
        scene.has_all_back()


async def test_what_is_refused_before_it_is_read_is_counted():
    async with Scene() as scene:
        scene.director.refused(ROUTE, "id", BodyTooLarge("too large"))
        assert (scene.line.request_id, scene.line.status, scene.line.phase) == ("id", 413, "receiving")
        scene.has_all_back()


async def test_a_stream_holds_nothing_of_its_request():
    async with Scene() as scene:
        task, side, _ = await scene.begun(MemoryClient(STREAMED), ROLE)
        assert scene.memory.held == 0
        assert orjson.loads(side.requests[0][1])["messages"] == CHAT["messages"]
        side.say(chunked(WORD, DONE))
        await task
        scene.has_all_back()


# The end of a configuration


async def test_it_retires_with_its_last_request():
    async with Scene() as scene:
        retired: list[bool] = []
        first, second = scene.ask(MemoryClient(CHAT)), scene.ask(MemoryClient(CHAT))
        sides = [await scene.engines.request(), await scene.engines.request()]
        scene.director.retire(lambda: retired.append(True))
        sides[0].say(answer(COMPLETE))
        await first
        assert retired == []
        with scene.director.in_use():
            sides[1].say(answer(COMPLETE))
            await second
            assert retired == [], "whatever is done by the configuration counts"
        assert retired == [True]
        scene.has_all_back(2)


async def test_it_retires_at_once_where_nothing_runs():
    async with Scene() as scene:
        retired: list[bool] = []
        scene.director.retire(lambda: retired.append(True))
        assert retired == [True]
