"""`kvgate serve`: one process's life, from its configuration to its last answer: listeners, signals, the end."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import logging
import os
import signal
import socket
from collections.abc import Coroutine
from typing import Any

from gateway import __version__
from gateway.app import Gateway
from gateway.config.settings import Config
from gateway.core.build import BUILD
from gateway.core.clock import SystemClock
from gateway.core.tasks import TaskSet
from gateway.core.tls import follow
from gateway.errors import ConfigError
from gateway.notify import notify
from gateway.observability.logs import configure
from gateway.observability.request_log import RequestLog
from gateway.proxy.admin.worker_routes import WorkerRoutes
from gateway.proxy.http.keys import read as read_keys
from gateway.proxy.http.listener import Listener
from gateway.reload import Read
from gateway.restart.activation import given_sockets
from gateway.restart.again import Again
from gateway.restart.sockets import open_sockets
from gateway.restart.succession import Held, Succession
from gateway.restart.takeover import TakeOver
from gateway.tenants.settings import TenantsSettings
from gateway.wiring import blaming
from gateway.workers.post import Post

log = logging.getLogger("kvgate.app")

BACKLOG = 4096
"""Connections that may wait to be accepted (Linux limits it to 4096). If more arrive at once, the clients' kernels try
again after a second. aiohttp's default is 128."""

QUIET = 1.0
"""Seconds after an answer in which its client may send the next request on the same connection: a round trip, and the
client's own time. After that the connection may be closed; ``listen.lame_duck`` makes it shorter."""

YOUNG = 10_000
"""New objects after which the garbage collector runs. Python's default of 700 is reached by two requests."""


class Listeners:
    """The two listeners of ``gateway``, and what ``Succession`` asks of them. ``clients``, ``operators``."""

    def __init__(self, gateway: Gateway, given: dict[str, list[socket.socket]], before: TakeOver) -> None:
        """``given``: by the service manager. ``before``: from which process to take over."""
        self.clients = Listener(gateway.server.runner(), backlog=BACKLOG, tls=gateway.tls)
        self.operators = Listener(gateway.admin.runner(), backlog=BACKLOG)
        self._gateway = gateway
        self._given = given
        self._before = before
        self._places: dict[str, tuple[str, int]] = {}

    async def open(self, name: str, host: str, port: int) -> int:
        """Accept on the listener ``clients`` or ``admin``; returns the port in use. Raises ConfigError."""
        listener = self.clients if name == "clients" else self.operators
        self._places[name] = host, port
        try:
            sockets = (
                self._given.get(name)
                or self._before.take(name, host, port)
                or open_sockets(host, port, backlog=BACKLOG, shared=self._before.found)
            )
            return await listener.accept(sockets)
        except OSError as error:
            key = "listen" if name == "clients" else "listen.admin"
            raise ConfigError(f"{key}: cannot listen on {host}:{port}: {error.strerror or error}") from error

    def held(self) -> list[Held]:
        listeners = {"clients": self.clients, "admin": self.operators}
        return [Held(name, *self._places[name], listeners[name].sockets) for name in self._places]

    async def pause(self) -> None:
        self.clients.pause()
        self.operators.pause()
        await self._gateway.leave_kept()

    async def resume(self) -> None:
        self._gateway.keep()
        await self.clients.resume()
        await self.operators.resume()

    def gone_to(self, pid: int) -> None:
        notify(f"MAINPID={pid}")
        self.clients.stop()
        self.operators.stop()

    async def close(self) -> None:
        await self.clients.close()
        await self.operators.close()


class End:
    """When this process is to end: a signal, or another process that has taken over.

    ``stop``: set by SIGTERM, SIGINT or the caller. ``hurry``: by a second signal. ``patient``: SIGTERM came, whose
    sender may still send clients here for a while. At SIGINT a person waits.
    """

    def __init__(self, stop: asyncio.Event | None, post: Post | None) -> None:
        self.stop = stop or asyncio.Event()
        self.hurry = asyncio.Event()
        self._post = post
        self._patient = False

    @property
    def patient(self) -> bool:
        return self._patient or (self._post is not None and self._post.patient)

    def on(self, number: int) -> None:
        # A service manager may send its signal to workers, too: a second one is no hurry then: their parent says so.
        if self.stop.is_set() and self._post is None:
            self.hurry.set()
        self._patient = self._patient or number == signal.SIGTERM
        self.stop.set()


async def serve(
    read: Read, *, stop: asyncio.Event | None = None, post: Post | None = None, before: TakeOver | None = None
) -> None:
    """Serve by the configuration that ``read`` gives, until ``stop`` is set, SIGTERM or SIGINT comes, or another
    process takes over; then let running answers end. A second signal cuts them off. SIGHUP reads the configuration
    again, SIGUSR2 starts this command again in a process that takes over.

    ``post``: of a worker: it serves, reloads and ends at its parent's word, and its parent takes over. ``before``: from
    which process to take over, if there is one. Raises ConfigError.
    """
    end = End(stop, post)
    config = read()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end.on, number)
    loop.add_signal_handler(signal.SIGUSR2, log.error, "SIGUSR2: not ready to be replaced")
    async with contextlib.AsyncExitStack() as cleanup:
        before = cleanup.enter_context(TakeOver() if before is None else before)
        if post is not None:
            post.open(end.stop, end.hurry)
            cleanup.callback(post.close)
        clock = SystemClock()
        worker = None if post is None else post.seat.number
        logs = configure(config.log, clock=clock, secrets=_secrets(config), worker=worker)
        cleanup.callback(logs.close)
        cleanup.callback(log.info, "stopped")
        given = given_sockets(os.environ, os.getpid())
        if post is None:
            await before.find(0 if "clients" in given else config.listen.port)
        request_log = RequestLog(logs, clock, requests=config.log.requests)

        def adopted(config: Config) -> None:
            logs.change(config.log.level, _secrets(config))
            request_log.change(requests=config.log.requests)

        seat = None if post is None else post.seat
        gateway = Gateway(config, observers=[request_log], clock=clock, read=read, adopted=adopted, seat=seat)
        cleanup.push_async_callback(gateway.close)
        loop.add_signal_handler(signal.SIGHUP, gateway.operations.hang_up)
        cleanup.callback(loop.remove_signal_handler, signal.SIGHUP)
        if post is not None:
            routes = WorkerRoutes(gateway.reloading.reload, gateway.rooms.sources.look)
            cleanup.push_async_callback(routes.close)
            cleanup.push_async_callback(post.leave, gateway.metrics.render)  # when all has ended
            gateway.admin.add(routes.routes())
        listeners = Listeners(gateway, given, before)
        cleanup.push_async_callback(listeners.close)
        if post is not None:
            await listeners.operators.open_unix(post.admin_socket)
        elif not before.found:
            await _open_admin(listeners, config)
        tasks = TaskSet()
        cleanup.push_async_callback(tasks.close)
        starting = tasks.start(gateway.start(keep=not before.found), name="start", awaited=True)
        await _first(tasks, starting, end.stop)
        if not starting.done():
            return
        await starting
        succession = Succession(listeners)
        cleanup.push_async_callback(succession.close)
        if post is None:
            await _begin(gateway, listeners, before)
            port = listeners.clients.sockets[0].getsockname()[1]
            succession.open(port)
            again = Again(succession, os.environ)
            cleanup.push_async_callback(again.close)
            loop.add_signal_handler(signal.SIGUSR2, again.request)
        else:
            await _first(tasks, post.may_serve(), end.stop)
            if end.stop.is_set():
                return
            await listeners.clients.accept([post.listening()])
        if gateway.tls is not None:
            tasks.start(follow([gateway.tls].copy), name="look at the listener's TLS files")
        _say_endpoints(gateway)
        _relieve_collector()
        if post is None:
            log.info("kvgate %s (%s) serves on %s", __version__, BUILD, _url(gateway, port))
            notify("READY=1")
        else:
            log.info("serves, one of %d workers", post.seat.count)
            post.serving()
        await _first(tasks, end.stop, succession.taken)
        shared = "clients" in given if post is None else post.stays
        await _leave(gateway, listeners, succession, end, shared=shared)


async def _begin(gateway: Gateway, listeners: Listeners, before: TakeOver) -> None:
    """Accept clients, in the place of the process that did before, if there is one. Raises ConfigError."""
    listen = gateway.config.listen
    await before.stopped()
    if before.found:
        gateway.read_kept(again=True)
        gateway.keep()
    await listeners.open("clients", listen.host, listen.port)
    if before.found:
        await _open_admin(listeners, gateway.config)
    await before.serving()


async def _open_admin(listeners: Listeners, config: Config) -> None:
    if config.listen.admin:
        host, _, port = config.listen.admin.rpartition(":")
        used = await listeners.open("admin", host.strip("[]"), int(port))
        log.info("metrics on http://%s:%d/metrics", host, used)


def _say_endpoints(gateway: Gateway) -> None:
    for name, report in gateway.directory.readiness().items():
        log.info("model %s: %d of %d endpoints usable", name, report["usable"], report["endpoints"])
        for endpoint, reason in report["unusable"].items():
            log.warning("endpoint %s of model %s is not usable: %s", endpoint, name, reason)


def _url(gateway: Gateway, port: int) -> str:
    scheme, host = "http" if gateway.tls is None else "https", gateway.config.listen.host
    shown = f"[{host}]" if ":" in host else host
    return f"{scheme}://{shown}:{port}"


async def _leave(gateway: Gateway, listeners: Listeners, succession: Succession, end: End, *, shared: bool) -> None:
    """Let running answers end, and lose nothing that has come. ``shared``: the service manager, or the workers' parent,
    keeps the clients' sockets: who waits there waits for the next process."""
    tasks = TaskSet()
    listen = gateway.config.listen
    patience = listen.lame_duck if end.patient or succession.taken.is_set() else 0.0
    gateway.server.leave(ready=succession.taken.is_set())
    hold = 0.0
    if not succession.taken.is_set():
        notify("STOPPING=1")
        if patience:
            log.info("stopping: accepting for %g s more, not ready for new clients", patience)
            await _first(tasks, asyncio.sleep(patience), succession.taken, end.hurry)
    if succession.taken.is_set():
        hold = patience
    log.info("stopping: %g s of grace for running answers", listen.grace)
    if shared or succession.shared:
        listeners.clients.stop()
    else:
        await listeners.clients.finish()
    succession.shut()
    draining = tasks.start(gateway.server.drain(listen.grace, hold=hold, quiet=min(QUIET, patience)), name="drain")
    await _first(tasks, draining, end.hurry)
    await tasks.close()


async def _first(tasks: TaskSet, *awaited: asyncio.Task[Any] | asyncio.Event | Coroutine[Any, Any, Any]) -> None:
    """Wait until one of these has ended or is set."""
    waiting = []
    for one in awaited:
        if not isinstance(one, asyncio.Task):
            one = tasks.start(one.wait() if isinstance(one, asyncio.Event) else one, name="wait")
        waiting.append(one)
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)


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
        shared = filter(None, [config.sharing.password])
        return [*keys, *shared, *_of_tenants(config.tenants), *read_keys(config.client_keys)]


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
