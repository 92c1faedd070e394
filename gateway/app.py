"""The composition root: builds every room from a configuration and connects them. The only file that knows them all."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import logging
import random
import signal
from collections.abc import Callable, Sequence
from typing import Any

from gateway import __version__
from gateway.config.settings import Config
from gateway.core.build import BUILD
from gateway.core.clock import SystemClock
from gateway.core.observer import Observer
from gateway.core.queue_view import QueueView
from gateway.core.tasks import TaskSet
from gateway.core.tls import follow
from gateway.errors import ConfigError
from gateway.feed import CacheFeed
from gateway.fleet.fleet import Fleet
from gateway.framework import Clock
from gateway.kvcache.events.listener import EventListener
from gateway.kvcache.events.poller import Poller
from gateway.notify import notify
from gateway.observability.logs import configure
from gateway.observability.metrics import Metrics
from gateway.observability.observers import Observers
from gateway.observability.request_log import RequestLog
from gateway.proxy.admin.debug import Debug
from gateway.proxy.admin.explain import Explainer
from gateway.proxy.admin.keys import KeyRoutes
from gateway.proxy.admin.listener import Admin
from gateway.proxy.admin.operations import Operations
from gateway.proxy.http.keys import read as read_keys
from gateway.proxy.http.listener import Listener
from gateway.proxy.http.server import Server
from gateway.proxy.memory import Memory
from gateway.proxy.serving.decisions import Decisions
from gateway.proxy.serving.model_directory import ModelDirectory
from gateway.proxy.serving.response_affinity import ResponseAffinity
from gateway.proxy.serving.stream_usage import StreamUsage
from gateway.proxy.upstream.send import Upstream
from gateway.reload import Read, Reloading, listening
from gateway.scheduling.scheduler import Scheduler
from gateway.tenancy import store_of
from gateway.tenants.gate import Gate
from gateway.tenants.management import Management
from gateway.tenants.settings import TenantsSettings
from gateway.tenants.sources import Sources
from gateway.tenants.state_file import StateFile
from gateway.tenants.usage import usage
from gateway.wiring import Common, Draft, Rooms, Wiring, blaming, priced, topics

log = logging.getLogger("kvgate.app")

BACKLOG = 4096
"""Connections that may wait to be accepted (Linux limits it to 4096). If more arrive at once, the clients' kernels try
again after a second. aiohttp's default is 128."""

YOUNG = 10_000
"""New objects after which the garbage collector runs. Python's default of 700 is reached by two requests."""


class Gateway:
    """Every room of one process, connected; its listeners are the caller's.

    ``observers``: observers beside the metrics. ``seed``: of all random choices. ``read``: reads the configuration
    again for a reload; None: it cannot be reloaded. ``adopted``: called with each configuration that comes into force
    by a reload. Raises ConfigError.
    """

    def __init__(
        self,
        config: Config,
        *,
        observers: Sequence[Observer] = (),
        clock: Clock | None = None,
        seed: int | None = None,
        read: Read | None = None,
        adopted: Callable[[Config], None] = lambda config: None,
    ) -> None:
        self.clock = clock or SystemClock()
        self.metrics = Metrics(self.clock, __version__)
        self.decisions = Decisions(self.clock)
        observer = Observers(self.metrics, self.decisions, *observers)
        common = Common(self.clock, observer, random.Random(seed))
        draft = self._first = Draft.make(config, common, None)
        with blaming(config, "models"):
            self.fleet = Fleet(
                models=priced(config, draft.runtimes),
                settings=config.fleet,
                clock=self.clock,
                observer=observer,
                random=common.chance,
            )
        indexes = {runtime.model.name: runtime.index for runtime in draft.runtimes}
        self._poller = Poller()
        self.feed = CacheFeed(indexes, self.clock, observer, self._poller, listener_of(config, observer))
        self.feed.connect(self.fleet)
        self.memory = Memory(config.listen.max_held)
        self._stored = ResponseAffinity(self.clock)
        sources = Sources(self.clock, config.tenants, draft.client_keys, draft.source)
        gate = Gate(lambda: sources.directory.roster.prices, self.clock, observer)
        self._state = None if config.tenants.state is None else StateFile(config.tenants.state, gate)
        rooms = self.rooms = Rooms(
            common,
            self.fleet,
            Upstream(config.timeouts, memory=self.memory),
            self._poller,
            self._stored,
            self.decisions,
            StreamUsage(self.clock),
            self.memory,
            sources,
            gate,
            self.clock.wall(),
        )
        people = sources.directory
        self.metrics.read_tenants_from(
            keys=lambda: len(people.roster.entries), header_tenants=lambda: len(people.named), source=sources.state
        )
        self.metrics.read_from(
            held=lambda: self.memory.held, in_flight=self.fleet.in_flight, budgets=gate.budget_ratios
        )
        wiring = Wiring.make(draft, rooms, None)
        self.metrics.read_queues_from(self._queue_views)
        self.server = Server(wiring.director, wiring.directory, people, gate, patience=config.timeouts.receive)
        self.tls = listening(config)
        self.reloading = Reloading(
            wiring, rooms=rooms, feed=self.feed, server=self.server, tls=self.tls, read=read, adopted=adopted
        )
        self.operations = Operations(self.fleet, self.reloading.reload)
        debug = Debug(
            self.decisions,
            lambda: self.explainer,
            self.memory,
            max_body=lambda: self.config.listen.max_body,
            patience=lambda: self.config.timeouts.receive,
        )
        keys = KeyRoutes(
            token=lambda: self.config.tenants.admin_token,
            management=lambda: Management(store_of(self.config), self.config.tenants, self.clock),
            memory=self.memory,
            patience=lambda: self.config.timeouts.receive,
            written=rooms.sources.look,
            used=self._used,
        )
        self.admin = Admin(self._render_metrics, (*self.operations.routes(), *debug.routes(), *keys.routes()))

    def _queue_views(self) -> list[QueueView]:
        return [queue.view() for queue in self.reloading.wiring.queues.values()]

    def _used(self, tenant: str) -> dict[str, Any] | None:
        """What a tenant in force has used, and what is left of its limits and budget."""
        caller = self.rooms.sources.directory.roster.callers.get(tenant)
        return None if caller is None else usage(self.rooms.gate, caller)

    # The parts in force, which a reload replaces

    @property
    def config(self) -> Config:
        return self.reloading.wiring.config

    @property
    def scheduler(self) -> Scheduler:
        return self.reloading.wiring.scheduler

    @property
    def directory(self) -> ModelDirectory:
        return self.reloading.wiring.directory

    @property
    def explainer(self) -> Explainer:
        return Explainer(
            directory=self.directory,
            scheduler=self.scheduler,
            fleet=self.fleet,
            passing=self.config.pass_through,
            stored=self._stored,
            poller=self._poller,
            following=self.feed.following,
            queues=self.reloading.wiring.queues,
            tenants=self.rooms.sources.directory,
            in_use=self.reloading.wiring.director.in_use,
            clock=self.clock,
        )

    async def _render_metrics(self) -> tuple[bytes, str]:
        """What has come of the engines' events is counted."""
        await self._poller.catch_up(placing=False)
        return await self.metrics.render()

    async def load(self) -> None:
        """Load the tokenizers. Raises ConfigError."""
        await self._first.load()

    async def start(self) -> None:
        """Load the tokenizers, probe the engines, follow their events. Raises ConfigError."""
        await self.load()
        for runtime in self.directory.runtimes:
            runtime.tokens.log_status()
        if self._state is not None:
            with blaming(self.config, "tenants", "state"):
                self._state.load()
            self._state.start()
        with blaming(self.config, "kv_events", "listen"):
            self.feed.listen()
        await self.fleet.start()
        self.rooms.sources.start()
        self.reloading.open = True

    async def close(self) -> None:
        """Safe after a failed ``start``."""
        await self.operations.close()
        await self.rooms.sources.close()
        if self._state is not None:
            await self._state.close()
        await self.fleet.close()  # before the feed, which it notifies of event streams
        await self.feed.close()
        await self.rooms.close()
        await self.reloading.close()


def listener_of(config: Config, observer: Observer) -> EventListener | None:
    """The listener to which engines connect with their KV events, if any is configured to; it does not listen yet."""
    listen = config.kv_events.listen
    return None if listen is None else EventListener(listen, topics(config), observer)


async def _listen(listener: Listener, host: str, port: int, what: str) -> int:
    """The port in use. Raises ConfigError."""
    try:
        return await listener.open(host, port)
    except OSError as error:
        raise ConfigError(f"{what}: cannot listen on {host}:{port}: {error.strerror or error}") from error


async def serve(read: Read, *, stop: asyncio.Event | None = None) -> None:
    """Serve by the configuration that ``read`` gives, until ``stop`` is set or SIGTERM or SIGINT comes, then let
    running answers end. A second signal cuts them off. SIGHUP reads the configuration again.

    Raises ConfigError.
    """
    config = read()
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
        request_log = RequestLog(logs, clock, requests=config.log.requests)

        def adopted(config: Config) -> None:
            logs.change(config.log.level, _secrets(config))
            request_log.change(requests=config.log.requests)

        gateway = Gateway(config, observers=[request_log], clock=clock, read=read, adopted=adopted)
        cleanup.push_async_callback(gateway.close)
        loop.add_signal_handler(signal.SIGHUP, gateway.operations.hang_up)
        cleanup.callback(loop.remove_signal_handler, signal.SIGHUP)
        clients = Listener(gateway.server.runner(), backlog=BACKLOG, tls=gateway.tls)
        operators = Listener(gateway.admin.runner(), backlog=BACKLOG)
        cleanup.push_async_callback(clients.close)
        cleanup.push_async_callback(operators.close)

        listen = config.listen
        if listen.admin:
            host, _, port = listen.admin.rpartition(":")
            admin_port = await _listen(operators, host.strip("[]"), int(port), "listen.admin")
            log.info("metrics on http://%s:%d/metrics", host, admin_port)
        tasks = TaskSet()
        cleanup.push_async_callback(tasks.close)
        starting = tasks.start(gateway.start(), name="start", awaited=True)
        stopping = tasks.start(stop.wait(), name="wait for a signal")
        await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            return
        await starting
        port_used = await _listen(clients, listen.host, listen.port, "listen")
        if gateway.tls is not None:
            tasks.start(follow([gateway.tls].copy), name="look at the listener's TLS files")
        for name, report in gateway.directory.readiness().items():
            log.info("model %s: %d of %d endpoints usable", name, report["usable"], report["endpoints"])
            for endpoint, reason in report["unusable"].items():
                log.warning("endpoint %s of model %s is not usable: %s", endpoint, name, reason)
        scheme, host = (
            "http" if gateway.tls is None else "https",
            f"[{listen.host}]" if ":" in listen.host else listen.host,
        )
        log.info("kvgate %s (%s) serves on %s://%s:%d", __version__, BUILD, scheme, host, port_used)
        _relieve_collector()
        notify("READY=1")

        await stop.wait()
        notify("STOPPING=1")
        grace = gateway.config.listen.grace
        log.info("stopping: %g s of grace for running answers", grace)
        clients.stop()
        draining = tasks.start(gateway.server.drain(grace), name="drain")
        hurrying = tasks.start(hurry.wait(), name="wait for a second signal")
        await asyncio.wait((draining, hurrying), return_when=asyncio.FIRST_COMPLETED)


def _relieve_collector() -> None:
    """Exclude all existing objects from garbage collection, and run the collector less often. No request leaves a
    reference cycle behind (tests/proxy/test_garbage.py), so there is little to collect."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, *gc.get_threshold()[1:])


def _secrets(config: Config) -> list[str]:
    """The secrets that must not appear in any log line."""
    keys = [endpoint.api_key for model in config.models for endpoint in model.endpoints if endpoint.api_key]
    with blaming(config, "client_keys", "file"):
        return [*keys, *_of_tenants(config.tenants), *read_keys(config.client_keys)]


def _of_tenants(settings: TenantsSettings) -> list[str]:
    found = [settings.admin_token, None if settings.valkey is None else settings.valkey.password]
    return [secret for secret in found if secret]


def override(config: Config, host: str | None, port: int | None, log_format: str | None, level: str | None) -> Config:
    """``config`` with the values of the command line. Raises ConfigError."""
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
