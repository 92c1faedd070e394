"""The composition root: builds every room from a configuration and connects them. The only file that knows them all."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import random
import signal
from collections.abc import Iterator, Sequence

from aiohttp import web

from gateway import __version__
from gateway.config.settings import Config
from gateway.config.wiring import wire
from gateway.errors import ConfigError
from gateway.feed import CacheFeed
from gateway.fleet.fleet import Fleet
from gateway.flow.admission import Admission
from gateway.framework import Clock, Context, Model, Observer, SystemClock, TaskSet
from gateway.kvcache.index import CacheIndex
from gateway.kvcache.intake import Intake
from gateway.notify import notify
from gateway.observability.logs import configure
from gateway.observability.metrics import Metrics
from gateway.observability.observers import Observers
from gateway.observability.request_log import RequestLog
from gateway.proxy.admin import Admin
from gateway.proxy.director import Director
from gateway.proxy.directory import Directory, Serving
from gateway.proxy.forward import Forwarder
from gateway.proxy.handover import Handover
from gateway.proxy.keys import ClientKeys
from gateway.proxy.keys import read as read_keys
from gateway.proxy.legs import RetryBudget
from gateway.proxy.rendering import Rendering
from gateway.proxy.server import Server
from gateway.proxy.upstream import Upstream
from gateway.proxy.witness import Witness
from gateway.tokens.parity import Parity
from gateway.tokens.tokenizer import ModelTokens

log = logging.getLogger("kvgate.app")

BACKLOG = 4096
"""Connections that may wait to be accepted (Linux bounds it by its own 4096): of a burst beyond it, the rest is tried
again by the client's kernel after a second. aiohttp's default is 128."""


class Gateway:
    """Every room of one process, connected; its listeners are the caller's.

    ``observers``: told of everything beside the metrics. ``seed``: of every choice by chance. Raises ConfigError.
    """

    def __init__(
        self,
        config: Config,
        *,
        observers: Sequence[Observer] = (),
        clock: Clock | None = None,
        seed: int | None = None,
    ) -> None:
        self.config = config
        self.clock = clock or SystemClock()
        self.metrics = Metrics(self.clock, __version__)
        chance = random.Random(seed)
        observer = Observers(self.metrics, *observers)

        self.scheduler = wire(
            config, lambda name: Context(name=name, clock=self.clock, random=chance, observer=observer)
        )
        models = [
            Model(name=m.name, aliases=m.aliases, served_name=m.served_name, handler=m.handler) for m in config.models
        ]
        with _blaming(config, "models"):
            self.fleet = Fleet(
                models=[(model, settings.endpoints) for model, settings in zip(models, config.models, strict=True)],
                settings=config.fleet,
                clock=self.clock,
                observer=observer,
                random=chance,
            )
        servings = [
            Serving(
                model=model,
                tokens=ModelTokens(
                    settings,
                    model.name,
                    observer,
                    parity=Parity(model.name, self.clock, observer, sample=settings.parity.sample),
                ),
                index=CacheIndex(settings.kv_cache, model.name, self.clock, observer),
                admission=Admission(settings.limits, model.name, self.clock, observer),
                budget=RetryBudget(config.retries.budget),
            )
            for model, settings in zip(models, config.models, strict=True)
        ]
        self.directory = Directory(servings, self.fleet, self.clock.wall())
        caches = {s.model.name: (s.index, m.kv_cache) for s, m in zip(servings, config.models, strict=True)}
        self.feed = CacheFeed(caches, self.clock, observer, intake_of(config, observer))
        self.feed.connect(self.fleet)
        self.upstream = Upstream(config.timeouts)
        forwarder = Forwarder(self.fleet, self.upstream, config.pass_through)
        self.handover = Handover(
            forwarder=forwarder,
            upstream=self.upstream,
            fleet=self.fleet,
            timeouts=config.timeouts,
            clock=self.clock,
            observer=observer,
            random=chance,
        )
        self.rendering = Rendering(
            forwarder,
            self.upstream,
            self.directory,
            {settings.name: settings.media for settings in config.models},
            self.clock,
            observer,
        )
        self.witness = Witness(forwarder, self.upstream, chance)
        director = Director(
            directory=self.directory,
            fleet=self.fleet,
            scheduler=self.scheduler,
            forwarder=forwarder,
            handover=self.handover,
            rendering=self.rendering,
            witness=self.witness,
            listen=config.listen,
            timeouts=config.timeouts,
            retries=config.retries,
            passing=config.pass_through,
            clock=self.clock,
            observer=observer,
        )
        with _blaming(config, "client_keys", "file"):
            self.server = Server(
                director, self.directory, ClientKeys(config.client_keys), patience=config.timeouts.receive
            )
        self.admin = Admin(self.metrics.render_in_slices)

    async def load(self) -> None:
        """Load the tokenizers. Raises ConfigError."""
        await asyncio.gather(*(self._load(i, serving) for i, serving in enumerate(self.directory.servings)))

    async def start(self) -> None:
        """Load the tokenizers, probe the engines, follow their events. Raises ConfigError."""
        await self.load()
        with _blaming(self.config, "kv_events", "listen"):
            self.feed.listen()
        await self.upstream.start()
        await self.fleet.start()

    async def close(self) -> None:
        """Safe after a failed ``start``."""
        await self.fleet.close()  # first: it tells the feed of event streams
        await self.feed.close()
        await self.handover.close()
        await self.rendering.close()
        await self.witness.close()
        await self.upstream.close()
        for serving in self.directory.servings:
            await serving.tokens.close()

    async def _load(self, number: int, serving: Serving) -> None:
        try:
            await serving.tokens.load()
        except ConfigError as error:
            model = ("models", number)
            raise self.config.origin.error(model, error.message, at=(*model, error.param or "tokenizer")) from error


def intake_of(config: Config, observer: Observer) -> Intake | None:
    """What engines connect to with their KV events, if any shall; it does not listen yet."""
    if config.kv_events.listen is None:
        return None
    topics = [
        endpoint.kv_topic(model.name)
        for model in config.models
        for endpoint in model.endpoints
        if endpoint.kv_events.connects
    ]
    return Intake(config.kv_events.listen, topics, observer)


@contextlib.contextmanager
def _blaming(config: Config, *path: str) -> Iterator[None]:
    """Adds file, line and key to the error of a room that does not know them."""
    try:
        yield
    except ConfigError as error:
        raise config.origin.error(path, error.message) from error.__cause__


async def _bind(runner: web.BaseRunner, host: str, port: int, what: str) -> int:
    """Listen; the port in use, which the system chose if ``port`` is 0. Raises ConfigError."""
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port, backlog=BACKLOG).start()
    except OSError as error:
        raise ConfigError(f"{what}: cannot listen on {host}:{port}: {error.strerror or error}") from error
    address: Sequence[int] = runner.addresses[0]
    return address[1]


async def serve(config: Config, *, stop: asyncio.Event | None = None) -> None:
    """Serve until ``stop`` is set or SIGTERM or SIGINT comes, then let running answers end.

    A second signal cuts them off. Raises ConfigError.
    """
    stop = stop or asyncio.Event()
    hurry = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: hurry.set() if stop.is_set() else stop.set())
    async with contextlib.AsyncExitStack() as cleanup:
        clock = SystemClock()
        logs = configure(config.log, clock=clock, secrets=_secrets(config))
        cleanup.callback(logs.close)
        cleanup.callback(log.info, "stopped")
        gateway = Gateway(config, observers=[RequestLog(logs.logger, clock, requests=config.log.requests)], clock=clock)
        cleanup.push_async_callback(gateway.close)
        clients = gateway.server.runner()
        operators = gateway.admin.runner()
        cleanup.push_async_callback(clients.cleanup)
        cleanup.push_async_callback(operators.cleanup)

        listen = config.listen
        if listen.admin:
            host, _, port = listen.admin.rpartition(":")
            admin_port = await _bind(operators, host.strip("[]"), int(port), "listen.admin")
            log.info("metrics on http://%s:%d/metrics", host, admin_port)
        tasks = TaskSet()
        cleanup.push_async_callback(tasks.close)
        starting = tasks.start(gateway.start(), name="start", awaited=True)
        stopping = tasks.start(stop.wait(), name="wait for a signal")
        await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            return
        await starting
        port_used = await _bind(clients, listen.host, listen.port, "listen")
        for name, report in gateway.directory.readiness().items():
            log.info("model %s: %d of %d endpoints usable", name, report["usable"], report["endpoints"])
            for endpoint, reason in report["unusable"].items():
                log.warning("endpoint %s of model %s is not usable: %s", endpoint, name, reason)
        log.info("kvgate %s serves on http://%s:%d", __version__, listen.host, port_used)
        notify("READY=1")

        await stop.wait()
        notify("STOPPING=1")
        log.info("stopping: %g s of grace for running answers", listen.grace)
        for site in list(clients.sites):
            await site.stop()
        draining = tasks.start(gateway.server.drain(listen.grace), name="drain")
        hurrying = tasks.start(hurry.wait(), name="wait for a second signal")
        await asyncio.wait((draining, hurrying), return_when=asyncio.FIRST_COMPLETED)


def _secrets(config: Config) -> list[str]:
    """What no log line may hold, however it came there."""
    keys = [endpoint.api_key for model in config.models for endpoint in model.endpoints if endpoint.api_key]
    with _blaming(config, "client_keys", "file"):
        return [*keys, *read_keys(config.client_keys)]


def override(config: Config, host: str | None, port: int | None, log_format: str | None, level: str | None) -> Config:
    """``config`` with what the command line says instead. Raises ConfigError."""
    try:
        listen = dataclasses.replace(
            config.listen,
            **{name: value for name, value in (("host", host), ("port", port)) if value is not None},  # type: ignore[arg-type]
        )
    except ValueError as error:
        raise ConfigError(f"--{error}") from None
    logs = dataclasses.replace(
        config.log,
        **{name: value for name, value in (("format", log_format), ("level", level)) if value is not None},  # type: ignore[arg-type]
    )
    return dataclasses.replace(config, listen=listen, log=logs)
