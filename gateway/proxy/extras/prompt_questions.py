"""Requests the token ids of a prompt from an engine before the prompt is placed, where only an engine knows them: the
number of tokens of an image and the hash in its blocks, and chats that vLLM renders in code of its own.

Rules: for images this is off unless the model's configuration turns it on, since the engine then processes each image
twice. For other prompts that cannot be tokenized here it is on unless turned off. A client waits for it no longer than
the configured seconds. There is one request for each body, and a limited number at a time. An engine that does not
answer is asked again after a pause, and its health does not change. Without an answer the gateway uses its own ids, or
an estimate.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from gateway.api.body import JsonBody
from gateway.api.parse import Parsed
from gateway.core.log_limit import LogLimit, left_out
from gateway.core.observer import Observer
from gateway.core.prompt import ChatInput, Prompt, TextInput
from gateway.core.tasks import TaskSet
from gateway.framework import Clock, Endpoint, Kind
from gateway.proxy.extras.token_routes import ABSENCE, ABSENT, TOKENIZE, reporting_routes
from gateway.proxy.serving.call import IncomingRequest
from gateway.proxy.serving.forward import Forwarder
from gateway.proxy.serving.model_directory import ModelDirectory
from gateway.proxy.serving.not_asked import NotAsked
from gateway.proxy.upstream.legs import Leg, LegFailed
from gateway.proxy.upstream.send import Upstream
from gateway.tokens.media import can_be_asked, holds_media
from gateway.tokens.reported_prompts import ReportedPrompts, continued, prompt_key, reading, turn_keys
from gateway.tokens.settings import TokenSettings
from gateway.tokens.tokenizer import ModelTokens

log = logging.getLogger("kvgate.tokens")

PAUSE = 30.0
"""Seconds for which an engine that did not answer is not asked again: each request may make a client wait for the whole
timeout."""

QUESTIONS = 16
"""Questions for a model at a time: each takes a tokenizer's thread of an engine for some milliseconds."""

MEDIA_QUESTIONS = 4
"""The same of those for images, which each take an engine's processor for much longer."""

MAX_ANSWER = 16 * 1024 * 1024
"""The most bytes of an answer: two million ids. An older engine also sends the images back."""

CHATS = frozenset({Kind.CHAT, Kind.RESPONSES, Kind.MESSAGES})

REFUSED = (400, 413, 422)
"""Statuses whose cause is the body and not the engine."""


@dataclass(frozen=True, slots=True)
class _Question:
    """``name``: the cache key of its answer. ``paths``: the engine's routes that can answer, best first. ``media``: it
    is for a chat with images. ``messages``: those of a chat without images."""

    name: bytes
    paths: Sequence[str]
    media: bool
    messages: Sequence[Any] = ()


class ModelQuestions:
    """What is asked for one model, and what engines have reported. It stays as long as the model's settings do."""

    def __init__(self, settings: TokenSettings) -> None:
        self.settings = settings
        self.reported = ReportedPrompts()
        self.asked: dict[bytes, asyncio.Task[Prompt | None]] = {}
        self._media = settings.media.timeout, asyncio.Semaphore(MEDIA_QUESTIONS)
        self._tokens = settings.tokens.ask_timeout, asyncio.Semaphore(QUESTIONS)

    def bounds(self, question: _Question) -> tuple[float, asyncio.Semaphore]:
        """Seconds that a client waits for an answer, and the limit of concurrent requests."""
        return self._media if question.media else self._tokens


@dataclass(slots=True)
class PromptQuestionsState:
    """What outlives a configuration: made once, and used by the ``PromptQuestions`` of each.

    ``models``: of the last configuration, by name. ``rests``: routes of engines that are not asked for a while.
    ``asking``: our questions under way, by the engine's URL; ``tasks``: the same as tasks.
    """

    models: Mapping[str, ModelQuestions] = field(default_factory=dict)
    rests: NotAsked = field(default_factory=NotAsked)
    asking: Counter[str] = field(default_factory=Counter)
    tasks: TaskSet = field(default_factory=TaskSet)

    def configure(self, settings: Mapping[str, TokenSettings]) -> Mapping[str, ModelQuestions]:
        """The models of another configuration; those whose settings are the same go on."""
        before = self.models
        self.models = {
            name: before[name] if name in before and before[name].settings == its else ModelQuestions(its)
            for name, its in settings.items()
        }
        return self.models

    async def close(self) -> None:
        await self.tasks.close()


class PromptQuestions:
    """``settings``: of each model, by its name."""

    def __init__(
        self,
        forwarder: Forwarder,
        upstream: Upstream,
        directory: ModelDirectory,
        settings: Mapping[str, TokenSettings],
        clock: Clock,
        observer: Observer,
        state: PromptQuestionsState,
    ) -> None:
        self._forwarder = forwarder
        self._upstream = upstream
        self._directory = directory
        self._clock = clock
        self._often = LogLimit(clock)
        self._observer = observer
        self._state = state
        self._models = state.configure(settings)

    async def prompt(self, incoming: IncomingRequest, parsed: Parsed) -> Prompt | None:
        """The engine's own ids; None: no engine reported them, or none was asked. Only for a model whose tokens have
        ``may_ask_first``."""
        name = incoming.runtime.model.name
        model = self._models.get(name)
        if model is None or not isinstance(parsed.body, JsonBody):
            return None
        question = _question(parsed, parsed.body, model, incoming.runtime.tokens, incoming.request.adapter)
        if question is None:
            return None
        known = model.reported.find(question.name, self._clock.monotonic())
        if known is not None:
            self._count(name, question, "remembered")
            return known
        task = model.asked.get(question.name)
        if task is None:
            asking = self._ask_in_time(incoming, model, question)
            task = self._state.tasks.start(asking, name=f"ask for tokens of {name}", awaited=True)
            model.asked[question.name] = task
            task.add_done_callback(lambda _: model.asked.pop(question.name, None))
        # The first client may disconnect while others wait for the same answer.
        return await asyncio.shield(task)

    async def _ask_in_time(
        self, incoming: IncomingRequest, model: ModelQuestions, question: _Question
    ) -> Prompt | None:
        endpoint: Endpoint | None = None
        prompt: Prompt | None = None
        timeout, slots = model.bounds(question)
        path = ""
        try:
            async with asyncio.timeout(timeout), slots:
                result = "no-route"
                while (chosen := self._choose(incoming, question)) is not None:
                    endpoint, path = chosen
                    result, prompt = await self._ask(incoming, endpoint, path, media=question.media)
                    if result != "absent":
                        break
                    self._rest(endpoint, path, ABSENCE)
        except TimeoutError:
            result = "busy" if endpoint is None else "timeout"
        if endpoint is not None and result in ("failed", "timeout"):
            self._rest(endpoint, path, PAUSE)
        self._count(incoming.runtime.model.name, question, result)
        return self._remember(incoming, model, question, prompt)

    def _remember(
        self, incoming: IncomingRequest, model: ModelQuestions, question: _Question, prompt: Prompt | None
    ) -> Prompt | None:
        """Cache ``prompt`` and return it. If None, return the ids that were reported for the conversation's earlier
        turns, with an estimate of the rest."""
        assert isinstance(incoming.body, JsonBody)
        now, turns = self._clock.monotonic(), []
        if question.messages:
            path, adapter = incoming.route.path, incoming.request.adapter
            turns = turn_keys(path, incoming.body.fields, question.messages, adapter)
        if prompt is not None:
            model.reported.keep(question.name, prompt, now, turns[-1] if turns else None)
            return prompt
        found = model.reported.find_continued(turns, now)
        return None if found is None else continued(found[1], question.messages[found[0] :])

    def _choose(self, incoming: IncomingRequest, question: _Question) -> tuple[Endpoint, str] | None:
        """An endpoint whose engine may answer, and the path: the best path that any engine has, then the endpoint with
        the fewest of our requests, then the one with the least work."""
        now = self._clock.monotonic()
        candidates = [
            endpoint
            for endpoint in self._directory.candidates(incoming.runtime.model, incoming.request.adapter)
            if endpoint.engine.up and not endpoint.draining
        ]
        for path in question.paths:
            able = [endpoint for endpoint in candidates if not self._state.rests.has(endpoint.engine, path, now)]
            if able:
                return min(able, key=lambda one: (self._state.asking[one.engine.url], one.load.requests)), path
        return None

    def _rest(self, endpoint: Endpoint, path: str, seconds: float) -> None:
        self._state.rests.begin(endpoint.engine, path, self._clock.monotonic() + seconds)

    async def _ask(
        self, incoming: IncomingRequest, endpoint: Endpoint, path: str, *, media: bool
    ) -> tuple[str, Prompt | None]:
        """The result as a word for the metric, and the prompt."""
        leg, url = self._leg(incoming, endpoint, path, media=media), endpoint.engine.url
        self._state.asking[url] += 1
        try:
            with await self._upstream.send(leg) as answer:
                parts, size = [], 0
                while (data := await answer.chunk()) and size <= MAX_ANSWER:
                    parts.append(data)
                    size += len(data)
        except LegFailed as failure:
            if (count := self._often.admit(endpoint.name, str(failure.cause))) is not None:
                log.info("%s: %s: %s%s", endpoint.name, leg.path, failure.cause, left_out(count))
            return "failed", None
        finally:
            self._state.asking[url] -= 1
            self._state.asking += Counter()  # engines come and go
        if answer.status in REFUSED:
            return "refused", None
        if answer.status in ABSENT and not media:
            return "absent", None
        prompt = await _read(b"".join(parts)) if answer.status == 200 and size <= MAX_ANSWER else None
        if prompt is None:
            log.warning(
                "%s: %s does not report %s (HTTP %d, %d bytes)%s; it is asked again in %g s",
                *(endpoint.name, leg.path, "the tokens of images" if media else "the tokens of prompts"),
                *(answer.status, size),
                *(": vLLM needs --enable-scale-out" if media else "", PAUSE),
            )
            return "failed", None
        return "asked", prompt if media else replace(prompt, own=prompt.ids)

    def _leg(self, incoming: IncomingRequest, endpoint: Endpoint, path: str, *, media: bool) -> Leg:
        assert isinstance(incoming.body, JsonBody)
        body = incoming.body
        if media:
            body = body.copy()
            body.set("mm_payload", "none")
        return replace(self._forwarder.leg(incoming, endpoint, body), path=path)

    def _count(self, name: str, question: _Question, result: str) -> None:
        if question.media:
            self._observer.media_rendered(name, result)
        else:
            self._observer.prompt_asked(name, result)


async def _read(raw: bytes) -> Prompt | None:
    """In slices on the loop. Two million ids take 0.1 s, for which a thread would hold the GIL."""
    steps = reading(raw)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            prompt: Prompt | None = end.value
            return prompt
        await asyncio.sleep(0)


def _question(
    parsed: Parsed, body: JsonBody, model: ModelQuestions, tokens: ModelTokens, adapter: str | None
) -> _Question | None:
    """What to request for a body; None: nothing."""
    if parsed.previous_response is not None:
        return None
    given = parsed.input
    media = isinstance(given, ChatInput) and holds_media(given)
    if media:
        paths = [f"{parsed.route.path}/render"] if model.settings.media.render and _is_for_an_engine(parsed) else []
    elif isinstance(given, ChatInput | TextInput) and tokens.asks_engine_for(given):
        paths = reporting_routes(parsed.route, body, tokens)
        if isinstance(given, TextInput):
            paths = [path for path in paths if path == TOKENIZE]  # a render route answers with a list
    else:
        paths = []
    if not paths:
        return None
    truncated = isinstance(given, ChatInput | TextInput) and given.truncated
    messages = given.messages if isinstance(given, ChatInput) and not media else ()
    return _Question(prompt_key(parsed.route.path, body.fields, adapter, truncated), paths, media, messages)


def _is_for_an_engine(parsed: Parsed) -> bool:
    """Whether the body has media, and the route's render path gives the same ids as the route itself.

    They differ for ``thinking: {"type": "disabled"}``: ``/v1/messages`` of vLLM 0.32 passes the template the effort
    that it has for this, and the render path always passes ``none``.
    """
    chat = parsed.input
    if not isinstance(chat, ChatInput) or parsed.route.kind not in CHATS:
        return False
    return not chat.thinking_disabled and can_be_asked(chat)
