"""Asks an engine what it makes of a chat with images, before the chat is placed: how many tokens an image has, and by
which hash its blocks are named, only an engine knows.

Rules: only where the model's configuration says so, since the engine prepares each image twice then; a client waits for
it no longer than ``timeout``; one question for each body, and a few at a time; an engine that does not answer is asked
again after a while, and is no sicker for it. Where nothing is told, the gateway's own ids serve, which end at the first
image.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from gateway.api.body import JsonBody
from gateway.api.parse import Call
from gateway.framework import ChatInput, Clock, Endpoint, Kind, LogLimit, Observer, Prompt, TaskSet, left_out
from gateway.proxy.directory import Directory
from gateway.proxy.exchange import Exchange
from gateway.proxy.forward import Forwarder
from gateway.proxy.legs import Leg, LegFailed
from gateway.proxy.upstream import Upstream
from gateway.tokens.media import can_be_asked
from gateway.tokens.media_answers import MediaAnswers, name_of, reading
from gateway.tokens.settings import MediaSettings

log = logging.getLogger("kvgate.tokens")

PAUSE = 30.0
"""Seconds for which an engine that did not answer is not asked: each question could cost a client ``timeout``."""

MAX_ANSWER = 16 * 1024 * 1024
"""Bytes: two million ids. An engine too old to leave the images out sends them along."""

RENDERED = frozenset({Kind.CHAT, Kind.RESPONSES, Kind.MESSAGES})

REFUSED = (400, 413, 422)
"""Statuses that say something of the body, and nothing of the engine."""


class MediaQuestions:
    """``settings``: of each model, by its name. ``after``: whose place it takes, under other settings: its questions
    are this one's to close, and what it was told is known."""

    def __init__(
        self,
        forwarder: Forwarder,
        upstream: Upstream,
        directory: Directory,
        settings: Mapping[str, MediaSettings],
        clock: Clock,
        observer: Observer,
        after: MediaQuestions | None = None,
    ) -> None:
        self._forwarder = forwarder
        self._upstream = upstream
        self._directory = directory
        self._clock = clock
        self._often = LogLimit(clock)
        self._observer = observer
        before: dict[str, _Model] = {} if after is None else after._models
        self._models: dict[str, _Model] = {
            name: before[name] if name in before and before[name].settings == its else _Model(its)
            for name, its in settings.items()
            if its.render
        }
        self._rests: dict[tuple[str, str], float] = {} if after is None else after._rests
        self._asking: Counter[str] = Counter() if after is None else after._asking
        self._tasks: TaskSet = TaskSet() if after is None else after._tasks

    async def close(self) -> None:
        await self._tasks.close()

    async def prompt(self, exchange: Exchange, call: Call) -> Prompt | None:
        """The engine's own ids; None: they are not to be had, or not asked for."""
        assert exchange.serving is not None
        assert exchange.request is not None
        name = exchange.serving.model.name
        model = self._models.get(name)
        if model is None or not isinstance(call.body, JsonBody) or not _is_for_an_engine(call):
            return None
        assert isinstance(call.input, ChatInput)
        body = name_of(call.route.path, call.body.fields, exchange.request.adapter, call.input.truncated)
        known = model.answers.find(body, self._clock.monotonic())
        if known is not None:
            self._observer.media_rendered(name, "remembered")
            return known
        task = model.asked.get(body)
        if task is None:
            task = self._tasks.start(self._ask_in_time(exchange, model, body), name=f"render for {name}", awaited=True)
            model.asked[body] = task
            task.add_done_callback(lambda _: model.asked.pop(body, None))
        # Whoever asked first may leave: others may wait for the same.
        return await asyncio.shield(task)

    async def _ask_in_time(self, exchange: Exchange, model: _Model, body: bytes) -> Prompt | None:
        endpoint: Endpoint | None = None
        prompt: Prompt | None = None
        try:
            async with asyncio.timeout(model.settings.timeout), model.slots:
                endpoint = self._choose(exchange)
                if endpoint is None:
                    result = "no-route"
                else:
                    result, prompt = await self._ask(exchange, endpoint)
        except TimeoutError:
            result = "busy" if endpoint is None else "timeout"
        if endpoint is not None and result in ("failed", "timeout"):
            self._rests[endpoint.engine.url, _path(exchange)] = self._clock.monotonic() + PAUSE
        if prompt is not None:
            model.answers.keep(body, prompt, self._clock.monotonic())
        self._observer.media_rendered(exchange.model_name, result)
        return prompt

    def _choose(self, exchange: Exchange) -> Endpoint | None:
        """The endpoint with the fewest of our questions, and then the least work, whose engine may answer."""
        assert exchange.serving is not None
        assert exchange.request is not None
        now, path = self._clock.monotonic(), _path(exchange)
        able = [
            endpoint
            for endpoint in self._directory.candidates(exchange.serving.model, exchange.request.adapter)
            if endpoint.engine.up and not endpoint.draining and self._rests.get((endpoint.engine.url, path), now) <= now
        ]
        return min(able, key=lambda one: (self._asking[one.engine.url], one.load.requests), default=None)

    async def _ask(self, exchange: Exchange, endpoint: Endpoint) -> tuple[str, Prompt | None]:
        """The metric's word for it, and what was told."""
        leg, url = self._leg(exchange, endpoint), endpoint.engine.url
        self._asking[url] += 1
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
            self._asking[url] -= 1
            self._asking += Counter()  # engines come and go
        if answer.status in REFUSED:
            return "refused", None
        prompt = await _read(b"".join(parts)) if answer.status == 200 and size <= MAX_ANSWER else None
        if prompt is None:
            log.warning(
                "%s: %s does not tell what images become (HTTP %d, %d bytes): vLLM needs --enable-scale-out; "
                "it is asked again in %g s",
                *(endpoint.name, leg.path, answer.status, size, PAUSE),
            )
            return "failed", None
        return "asked", prompt

    def _leg(self, exchange: Exchange, endpoint: Endpoint) -> Leg:
        assert isinstance(exchange.body, JsonBody)
        body = exchange.body.copy()
        body.set("mm_payload", "none")
        return replace(self._forwarder.leg(exchange, endpoint, body), path=_path(exchange))


class _Model:
    def __init__(self, settings: MediaSettings) -> None:
        self.settings = settings
        self.answers = MediaAnswers()
        self.slots = asyncio.Semaphore(settings.concurrency)
        self.asked: dict[bytes, asyncio.Task[Prompt | None]] = {}


async def _read(raw: bytes) -> Prompt | None:
    """In slices, since a thread would hold the interpreter for as long: two million ids take 0.1 s."""
    steps = reading(raw)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            told: Prompt | None = end.value
            return told
        await asyncio.sleep(0)


def _path(exchange: Exchange) -> str:
    return f"{exchange.route.path}/render"


def _is_for_an_engine(call: Call) -> bool:
    """Whether the route renders the body as the engine does where it serves it, and there is a medium to ask for.

    Of ``thinking: {"type": "disabled"}`` vLLM 0.32 makes the effort that its template knows for that where it serves
    ``/v1/messages``, and always ``none`` where it renders.
    """
    chat = call.input
    if not isinstance(chat, ChatInput) or call.route.kind not in RENDERED or call.previous_response is not None:
        return False
    return not chat.thinking_disabled and can_be_asked(chat)
