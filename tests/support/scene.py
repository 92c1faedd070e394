"""The rooms that a request crosses, real and connected as the wiring does, between a client and engines in memory."""

from __future__ import annotations

import asyncio
import contextlib
from array import array
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from gateway.api.known_chats import KnownChats
from gateway.api.routes import ROUTES, Route
from gateway.config.settings import Config
from gateway.core.clock import ManualClock
from gateway.core.observer import Observer, Settled
from gateway.core.prompt import Prompt
from gateway.fleet.fleet import Fleet
from gateway.flow.admission import Permit
from gateway.framework import Endpoint
from gateway.kvcache.events.poller import Poller
from gateway.kvcache.index.predictions import EVENTS_WITHIN
from gateway.pricing import priced
from gateway.proxy.memory import Memory, Share
from gateway.proxy.serving.attempt import Attempt
from gateway.proxy.serving.call import Call
from gateway.proxy.serving.decisions import Decisions
from gateway.proxy.serving.director import Director
from gateway.proxy.serving.forward import Forwarder
from gateway.proxy.serving.handover import Handover, HandoverState
from gateway.proxy.serving.hooks import BeforeSend, Hooks
from gateway.proxy.serving.model_directory import ModelDirectory
from gateway.proxy.serving.placer import Placer
from gateway.proxy.serving.reception import Reception
from gateway.proxy.serving.response_affinity import ResponseAffinity
from gateway.proxy.serving.settle import settle
from gateway.proxy.serving.stream_usage import StreamUsage
from gateway.proxy.serving.timeline import Timeline
from gateway.proxy.upstream.legs import Retries
from gateway.proxy.upstream.send import Upstream
from gateway.wiring import Common, Draft
from tests.support.gateway import IN_TURN, config_for, split_config
from tests.support.in_memory import EngineSide, MemoryClient, MemoryEngines, MemoryReply
from tests.support.wire import STREAM_HEAD, answer, chunked

CHAT = ROUTES["/v1/chat/completions"]

TURNS = 10
"""Of the loop: what waits for nothing outside is through by then, since a step wakes the next in the turn after it."""


class Notes(Observer):
    """``placements``: reason and seconds of each attempt. ``legs``: endpoint, kind and result of each that was sent and
    has ended. ``lines``: of the requests that were settled. ``left``: phases in which clients went away."""

    def __init__(self) -> None:
        self.placements: list[tuple[str, float]] = []
        self.legs: list[tuple[str, str, str]] = []
        self.lines: list[Settled] = []
        self.left: list[str] = []

    def placed(self, model: str, reason: str, seconds: float) -> None:
        self.placements.append((reason, seconds))

    def attempted(self, model: str, endpoint: str, leg: str, result: str) -> None:
        self.legs.append((endpoint, leg, result))

    def settled(self, request: Settled) -> None:
        self.lines.append(request)

    def disconnected(self, model: str, phase: str) -> None:
        self.left.append(phase)


class Life:
    """A request that is taken through the rooms by hand, as the director does. ``call``, ``permit``: from when it is
    read. ``attempts``: all of them."""

    call: Call

    def __init__(self, scene: Scene, route: Route) -> None:
        self._scene = scene
        self._route = route
        self.timeline = Timeline(scene.clock, scene.clock.monotonic())
        self.share = Share(scene.memory)
        self.permit: Permit | None = None
        self.attempts: list[Attempt] = []

    async def read(self, client: MemoryClient) -> Call:
        reception = self._scene.reception
        self.call, self.permit = await reception.read(client, self._route, "id", self.timeline, self.share)
        return self.call

    def place(self, retries: Retries | None = None) -> Attempt:
        scene, before = self._scene, self.attempts[-1] if self.attempts else None
        retries = retries or Retries(scene.config.retries, scene.runtime.budget)
        attempt = scene.placer.place(self.call, self.timeline, retries, before)
        self.attempts.append(attempt)
        return attempt

    def settle(self) -> None:
        if self.attempts:
            with self.attempts[-1]:
                pass
        if self.permit is not None:
            self.permit.release()
        self.share.release()
        settle("id", self._route, self.timeline, self._scene.notes)


class Scene:
    """One model on ``count`` engines, e0, e1, ..., which are asked in turn; their KV events would come at once.

    ``changes``: of the configuration. Needs a running loop.
    """

    def __init__(
        self, count: int = 2, *, hooks: Hooks | None = None, before_send: Sequence[BeforeSend] = (), **changes: Any
    ) -> None:
        urls = [f"http://e{number}:1" for number in range(count)]
        self.config: Config = config_for(*urls, **(IN_TURN | changes))
        config, self.clock, self.notes = self.config, ManualClock(), Notes()
        common = Common(self.clock, self.notes, Random(1))
        draft = Draft.make(config, common, None)
        self.scheduler = draft.scheduler
        [self.runtime] = draft.runtimes
        self.fleet = Fleet(priced(config, draft.runtimes), config.fleet, self.clock, self.notes, common.chance)
        for endpoint in self.endpoints:
            self.fleet._registry.watches[endpoint.engine].health.record_success(self.clock.now)
            endpoint.engine.up, endpoint.engine.down_reason = True, ""
            self.runtime.index.add(endpoint, events=True)
            self.runtime.index.set_complete(endpoint.slot)
        self.engines = MemoryEngines(self.clock)
        self.memory = Memory(config.listen.max_held)
        self.decisions = Decisions(self.clock)
        self.responses = ResponseAffinity(self.clock)
        self.directory = ModelDirectory(draft.runtimes, self.fleet, 0.0)
        upstream = Upstream(config.timeouts, self.engines, self.memory)
        usage = StreamUsage(self.clock)
        self.forwarder = Forwarder(self.fleet, upstream, config.pass_through, usage, before_send)
        self._handover = HandoverState()
        handover = Handover(
            forwarder=self.forwarder,
            fleet=self.fleet,
            timeouts=config.timeouts,
            clock=self.clock,
            observer=self.notes,
            random=common.chance,
            state=self._handover,
        )
        hooks = hooks or Hooks()
        self.reception = Reception(
            *(self.directory, self.fleet, self.responses, KnownChats(), hooks.prompt_sources),
            *(config.listen, config.timeouts, config.pass_through, None, self.clock),
        )
        self.queue = draft.queues.get(self.runtime.model.name)
        if self.queue is not None:
            self.queue.members = lambda: self.endpoints
        self.placer = Placer(self.directory, self.scheduler, self.decisions, self.clock, self.notes)
        self.director = Director(
            *(self.reception, self.placer, self.forwarder, handover, hooks, draft.queues),
            retries=config.retries,
            idle=config.timeouts.idle,
            poller=Poller(),
            memory=self.memory,
            clock=self.clock,
            observer=self.notes,
        )
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Scene:
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task
        self.engines.close()
        await self._handover.close()
        await self.runtime.tokens.close()

    @property
    def endpoints(self) -> Sequence[Endpoint]:
        return self.fleet.endpoints(self.runtime.model)

    @property
    def line(self) -> Settled:
        """Of the one request that was settled."""
        [line] = self.notes.lines
        return line

    async def turn(self) -> None:
        """Let all run that need not wait."""
        for _ in range(TURNS):
            await asyncio.sleep(0)

    def request(self, route: Route = CHAT) -> Life:
        """A request that has just come."""
        return Life(self, route)

    def ask(self, client: MemoryClient) -> asyncio.Task[None]:
        """Have the director answer ``client``."""
        task = asyncio.create_task(self.director.handle(client, CHAT, "id"))
        self._tasks.append(task)
        return task

    async def left(self, task: asyncio.Task[None]) -> None:
        """Its client leaves, which cancels it."""
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await self.turn()

    async def begun(self, client: MemoryClient, *said: bytes) -> tuple[asyncio.Task[None], EngineSide, MemoryReply]:
        """``client`` has the beginning of a stream: ``said``, each piece a chunk."""
        task = self.ask(client)
        side = await self.engines.request()
        side.say(STREAM_HEAD + chunked(*said, end=False))
        await client.begun.wait()
        assert client.answer is not None
        return task, side, client.answer

    async def answered(self, body: dict[str, Any], said: bytes) -> MemoryClient:
        """A client that has the whole answer ``said``."""
        client = MemoryClient(body)
        task = self.ask(client)
        (await self.engines.request()).say(answer(said))
        await task
        return client

    def has_all_back(self, requests: int = 1) -> None:
        """So many requests have ended, each was counted once, and nothing of them is held or booked anywhere. Only what
        was answered well may have left blocks in the index."""
        assert len(self.notes.lines) == requests
        assert self.memory.held == 0
        assert (self.runtime.admission.in_flight, self.runtime.admission.waiting) == (0, 0)
        for endpoint in self.endpoints:
            load = endpoint.load
            assert (load.requests, load.prefill_tokens, load.kv_tokens) == (0, 0, 0), endpoint.name
            assert (endpoint.in_flight, endpoint.running) == (0, 0)
        if not any(line.outcome == "ok" for line in self.notes.lines):
            self.clock.now += EVENTS_WITHIN  # no event is waited for any more that would confirm what was predicted
            index = self.runtime.index
            index.match(index.keys(Prompt(array("I"), 0, True)), 0, self.endpoints)
            assert index.blocks == 0
        idle: list[bool] = []
        self.director.retire(lambda: idle.append(True))
        assert idle == [True], "no request is left"


def split(prefill: int = 1) -> dict[str, Any]:
    """Every prompt is computed on one of the first engines, and answered on the one behind them."""
    urls = [f"http://e{number}:1" for number in range(prefill)]
    config = split_config(urls, [f"http://e{prefill}:1"], parameters={})
    model = config.models[0]
    return {
        "endpoints": model.endpoints,
        "handler": model.handler,
        "handlers": config.handlers,
        "profiles": config.profiles,
    }


def recorded(log: list[str], owner: Any, name: str, word: str) -> None:
    """Have each call of ``owner``'s method enter ``word`` in ``log``."""
    real: Callable[..., Any] = getattr(owner, name)

    def call(*arguments: Any, **named: Any) -> Any:
        log.append(word)
        return real(*arguments, **named)

    setattr(owner, name, call)
