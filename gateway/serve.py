"""`kvgate serve`: one process's life, from its configuration to its last answer: listeners, signals, the end."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import logging
import os
import signal

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
from gateway.sharing.seat import Seat
from gateway.tenants.settings import TenantsSettings
from gateway.wiring import blaming
from gateway.workers.post import Post

log = logging.getLogger("kvgate.app")

BACKLOG = 4096
"""Connections that may wait to be accepted (Linux limits it to 4096). If more arrive at once, the clients' kernels try
again after a second. aiohttp's default is 128."""

YOUNG = 10_000
"""New objects after which the garbage collector runs. Python's default of 700 is reached by two requests."""


async def _listen(listener: Listener, host: str, port: int, what: str) -> int:
    """The port in use. Raises ConfigError."""
    try:
        return await listener.open(host, port)
    except OSError as error:
        raise ConfigError(f"{what}: cannot listen on {host}:{port}: {error.strerror or error}") from error


async def serve(read: Read, *, stop: asyncio.Event | None = None, post: Post | None = None) -> None:
    """Serve by the configuration that ``read`` gives, until ``stop`` is set or SIGTERM or SIGINT comes, then let
    running answers end. A second signal cuts them off. SIGHUP reads the configuration again.

    ``post``: of a worker: it serves, reloads and ends at its parent's word. Raises ConfigError.
    """
    config = read()
    stop = stop or asyncio.Event()
    hurry = asyncio.Event()
    loop = asyncio.get_running_loop()
    # A service manager may send its signal to workers, too: then a second one is no hurry, and their parent says so.
    second = hurry if post is None else stop
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: second.set() if stop.is_set() else stop.set())
    async with contextlib.AsyncExitStack() as cleanup:
        if post is not None:
            post.open(stop, hurry)
            cleanup.callback(post.close)
        clock = SystemClock()
        worker = None if post is None else post.seat.number
        logs = configure(config.log, clock=clock, secrets=_secrets(config), worker=worker)
        cleanup.callback(logs.close)
        cleanup.callback(log.info, "stopped")
        request_log = RequestLog(logs, clock, requests=config.log.requests)

        def adopted(config: Config) -> None:
            logs.change(config.log.level, _secrets(config))
            request_log.change(requests=config.log.requests)

        seat = _seat()
        gateway = Gateway(config, observers=[request_log], clock=clock, read=read, adopted=adopted, seat=seat)
        cleanup.push_async_callback(gateway.close)
        loop.add_signal_handler(signal.SIGHUP, gateway.operations.hang_up)
        cleanup.callback(loop.remove_signal_handler, signal.SIGHUP)
        if post is not None:
            routes = WorkerRoutes(gateway.reloading.reload, gateway.rooms.sources.look)
            cleanup.push_async_callback(routes.close)
            gateway.admin.add(routes.routes())
        clients = Listener(gateway.server.runner(), backlog=BACKLOG, tls=gateway.tls)
        operators = Listener(gateway.admin.runner(), backlog=BACKLOG)
        cleanup.push_async_callback(clients.close)
        cleanup.push_async_callback(operators.close)

        listen = config.listen
        if post is not None:
            await operators.open_unix(post.admin_socket)
        elif listen.admin:
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
        if post is None:
            port_used = await _listen(clients, listen.host, listen.port, "listen")
        else:
            going = tasks.start(post.may_serve(), name="wait for the parent")
            await asyncio.wait((going, stopping), return_when=asyncio.FIRST_COMPLETED)
            if stop.is_set():
                return
            port_used = await clients.adopt(post.listening())
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
        _relieve_collector()
        if post is None:
            log.info("kvgate %s (%s) serves on %s://%s:%d", __version__, BUILD, scheme, host, port_used)
            notify("READY=1")
        else:
            log.info("serves, one of %d workers", post.seat.count)
            post.serving()

        await stop.wait()
        notify("STOPPING=1")
        grace = gateway.config.listen.grace
        log.info("stopping: %g s of grace for running answers", grace)
        clients.stop()
        draining = tasks.start(gateway.server.drain(grace), name="drain")
        hurrying = tasks.start(hurry.wait(), name="wait for a second signal")
        await asyncio.wait((draining, hurrying), return_when=asyncio.FIRST_COMPLETED)


def _seat() -> Seat | None:
    """Of a worker, as its parent gave it. Raises ConfigError."""
    try:
        return Seat.from_environment(os.environ)
    except ValueError as error:
        raise ConfigError(str(error)) from None


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
