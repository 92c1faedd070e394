"""Each hook has its turn in a request's life, sees what it needs, and is left out where it has no business."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.api.body import Body, JsonBody
from gateway.api.parse import Parsed
from gateway.core.prompt import Prompt, estimate
from gateway.framework import Endpoint, Kind
from gateway.framework.request import DECODE
from gateway.proxy.serving.attempt import Attempt
from gateway.proxy.serving.call import IncomingRequest
from gateway.proxy.serving.client import ClientGone
from gateway.proxy.serving.hooks import AfterSettle, Hooks
from gateway.proxy.upstream.commit import Committed
from gateway.tokens.settings import MediaSettings
from tests.support.chat import CHAT, COMPLETE, DONE, ROLE, TELLING, WORD
from tests.support.in_memory import MemoryClient
from tests.support.scene import Scene, recorded
from tests.support.wire import STREAM_HEAD, answer, chunked

ASKING: dict[str, Any] = {"media": MediaSettings(render=True)}
"""Of a model for whose prompts an engine may be asked."""


class Source:
    """A ``PromptSource`` that knows ``prompt``."""

    def __init__(self, prompt: Prompt | None) -> None:
        self.asked: list[tuple[IncomingRequest, Parsed]] = []
        self._prompt = prompt

    async def prompt(self, incoming: IncomingRequest, parsed: Parsed) -> Prompt | None:
        self.asked.append((incoming, parsed))
        return self._prompt


class Before:
    """A ``BeforeSend`` that sets a field."""

    def __init__(self) -> None:
        self.legs: list[tuple[str, str]] = []

    async def before_send(self, attempt: Attempt, endpoint: Endpoint, body: Body, leg: str) -> Body:
        self.legs.append((endpoint.name, leg))
        assert isinstance(body, JsonBody)
        assert attempt.plan.decode is endpoint
        changed = body.copy()
        changed.set("seed", len(self.legs))
        return changed


class After:
    """An ``AfterCommit``. ``settled``: as many requests were, each time when it is called after settling."""

    def __init__(self) -> None:
        self.committed: list[tuple[int, bytes]] = []
        self.settled: list[int] = []
        self.scene: Scene | None = None
        self.client: MemoryClient | None = None

    def after_commit(self, attempt: Attempt, committed: Committed) -> AfterSettle | None:
        assert self.client is not None
        assert self.client.answer is None, "before its client sees it"
        body = attempt.call.body
        assert isinstance(body, JsonBody)
        assert "messages" in body.fields
        assert len(attempt.call.request.token_ids) > 0
        self.committed.append((committed.status, committed.text))
        return self.settle

    def settle(self) -> None:
        assert self.scene is not None
        assert self.scene.memory.held == 0
        self.settled.append(len(self.scene.notes.lines))


def watched(scene: Scene, hook: After, body: dict[str, Any], **more: Any) -> MemoryClient:
    hook.scene, hook.client = scene, MemoryClient(body, **more)
    return hook.client


# A source of prompts


async def test_a_source_takes_the_place_of_our_tokenizer():
    source, log = Source(estimate(b"x" * 400, "media")), []
    async with Scene(hooks=Hooks((source,)), **ASKING) as scene:
        recorded(log, scene.runtime.tokens, "tokenize", "tokenize")
        await scene.answered(CHAT, COMPLETE)
        assert log == []
        assert scene.line.prompt_tokens == 100
        [(incoming, parsed)] = source.asked
        assert (incoming.id, parsed.model) == ("id", "sim")
        scene.has_all_back()


async def test_sources_are_asked_in_turn_and_then_our_tokenizer():
    first, second, third = Source(None), Source(estimate(b"x" * 400, "media")), Source(None)
    async with Scene(hooks=Hooks((first, second, third)), **ASKING) as scene:
        await scene.answered(CHAT, COMPLETE)
        assert [len(source.asked) for source in (first, second, third)] == [1, 1, 0]
    async with Scene(hooks=Hooks((first, third)), **ASKING) as scene:
        log: list[str] = []
        recorded(log, scene.runtime.tokens, "tokenize", "tokenize")
        await scene.answered(CHAT, COMPLETE)
        assert [len(source.asked) for source in (first, third)] == [2, 1]
        assert log == ["tokenize"]


async def test_a_source_is_not_asked_for_a_model_that_has_none():
    source = Source(estimate(b"x" * 400, "media"))
    async with Scene(hooks=Hooks((source,))) as scene:
        await scene.answered(CHAT, COMPLETE)
        assert source.asked == []


# Before a leg is sent


async def test_what_is_sent_may_be_changed_on_each_leg_anew():
    hook = Before()
    async with Scene(before_send=(hook,)) as scene:
        client = MemoryClient(CHAT)
        task = scene.ask(client)
        first = await scene.engines.request()
        first.say(answer(b"{}", status="503 Service Unavailable"))
        second = await scene.engines.request()
        second.say(answer(COMPLETE))
        await task
        assert (first.asked["seed"], second.asked["seed"]) == (1, 2)
        assert hook.legs == [("e0:1", DECODE), ("e1:1", DECODE)]
        scene.has_all_back()


async def test_each_sees_what_the_one_before_it_has_left():
    class Adds:
        async def before_send(self, attempt: Attempt, endpoint: Endpoint, body: Body, leg: str) -> Body:
            assert isinstance(body, JsonBody)
            changed = body.copy()
            changed.set("top_k", int(body.fields["seed"]) + 1)
            return changed

    async with Scene(before_send=(Before(), Adds())) as scene:
        task = scene.ask(MemoryClient(CHAT))
        side = await scene.engines.request()
        assert (side.asked["seed"], side.asked["top_k"]) == (1, 2)
        side.say(answer(COMPLETE))
        await task


async def test_a_client_that_leaves_while_a_hook_works_gives_all_back():
    class Slow:
        began = asyncio.Event()

        async def before_send(self, attempt: Attempt, endpoint: Endpoint, body: Body, leg: str) -> Body:
            self.began.set()
            await asyncio.Event().wait()
            return body

    hook = Slow()
    async with Scene(before_send=(hook,)) as scene:
        task = scene.ask(MemoryClient(CHAT))
        await hook.began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (scene.line.phase, scene.notes.legs, scene.engines.sides) == ("before-commit", [], [])
        scene.has_all_back()


# After commit, and after settling


@pytest.mark.parametrize("stream", [False, True])
async def test_it_sees_an_answer_before_its_client_and_is_called_after_all_is_given_back(stream):
    hook = After()
    async with Scene(hooks=Hooks(after_commit={Kind.CHAT: [hook]})) as scene:
        client = watched(scene, hook, TELLING if stream else CHAT)
        task = scene.ask(client)
        side = await scene.engines.request()
        if stream:
            side.say(STREAM_HEAD + chunked(ROLE, end=False))
            await client.begun.wait()
            assert (hook.committed, hook.settled) == ([(200, ROLE)], [])
            side.say(chunked(WORD, DONE))
        else:
            side.say(answer(COMPLETE))
        await task
        assert hook.committed == [(200, ROLE if stream else COMPLETE)]
        assert hook.settled == [1]
        scene.has_all_back()


async def test_it_is_for_the_kinds_of_requests_for_which_it_was_registered():
    hook = After()
    async with Scene(hooks=Hooks(after_commit={Kind.COMPLETION: [hook]})) as scene:
        await scene.answered(CHAT, COMPLETE)
        assert hook.committed == []


async def test_it_may_leave_nothing_for_after_settling():
    class Nothing(After):
        def after_commit(self, attempt: Attempt, committed: Committed) -> AfterSettle | None:
            super().after_commit(attempt, committed)
            return None

    hook = Nothing()
    async with Scene(hooks=Hooks(after_commit={Kind.CHAT: [hook]})) as scene:
        task = scene.ask(watched(scene, hook, CHAT))
        (await scene.engines.request()).say(answer(COMPLETE))
        await task
        assert (len(hook.committed), hook.settled) == (1, [])


async def test_nothing_is_left_of_an_attempt_that_failed():
    hook = After()
    async with Scene(hooks=Hooks(after_commit={Kind.CHAT: [hook]})) as scene:
        task = scene.ask(watched(scene, hook, CHAT))
        (await scene.engines.request()).say(answer(b"{}", status="503 Service Unavailable"))
        (await scene.engines.request()).say(answer(COMPLETE))
        await task
        assert (hook.committed, hook.settled) == ([(200, COMPLETE)], [1])


@pytest.mark.parametrize("how", ["cancelled", "left", "broken", "engine_error"])
async def test_after_settling_comes_only_after_a_good_end(how):
    hook = After()
    async with Scene(hooks=Hooks(after_commit={Kind.CHAT: [hook]})) as scene:
        client = watched(scene, hook, TELLING)
        task = scene.ask(client)
        side = await scene.engines.request()
        if how == "engine_error":
            side.say(answer(b'{"error": "no"}', status="400 Bad Request"))
            await task
        else:
            side.say(STREAM_HEAD + chunked(ROLE, end=False))
            await client.begun.wait()
            if how == "cancelled":
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            elif how == "left":
                client.answer.leave()
                with pytest.raises(ClientGone):
                    await task
            else:
                side.end(ConnectionResetError("reset"))
                await task
        assert scene.line.outcome == ("cancelled" if how == "left" else how)
        assert (len(hook.committed), hook.settled) == (1, [])
        scene.has_all_back()
