"""`kvgate serve`, `kvgate epp`: one process's life, from its configuration to its last answer: listeners, signals, the
end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
from collections.abc import Awaitable, Callable, Collection

from gateway import __version__
from gateway.addresses import BACKLOG, url_of
from gateway.app import Gateway
from gateway.config.settings import Config
from gateway.core.build import BUILD
from gateway.core.clock import SystemClock
from gateway.core.tasks import TaskSet
from gateway.core.tls import follow
from gateway.ending import End, first
from gateway.errors import ConfigError
from gateway.listeners import Listeners
from gateway.notify import notify
from gateway.observability.logs import configure
from gateway.observability.request_log import RequestLog
from gateway.proxy.admin.worker_routes import WorkerRoutes
from gateway.proxy.http.keys import read as read_keys
from gateway.reload import Read, api_keys
from gateway.restart.activation import given_sockets
from gateway.restart.again import Again
from gateway.restart.finding import Finding
from gateway.restart.succession import Succession
from gateway.restart.takeover import TakeOver
from gateway.tenants.settings import TenantsSettings
from gateway.wiring import blaming
from gateway.workers import words
from gateway.workers.post import Post

log = logging.getLogger("kvgate.app")

QUIET = 1.0
"""Seconds after an answer in which its client may send the next request on the same connection: a round trip, and the
client's own time. After that the connection may be closed; ``listen.lame_duck`` makes it shorter."""

YOUNG = 10_000
"""New objects after which the garbage collector runs. Python's default of 700 is reached by two requests."""


async def serve(
    read: Read,
    *,
    stop: asyncio.Event | None = None,
    post: Post | None = None,
    before: TakeOver | None = None,
    proxy: bool = True,
) -> None:
    """Serve by the configuration that ``read`` gives, until ``stop`` is set, SIGTERM or SIGINT comes, or another
    process takes over; then let running answers end. A second signal cuts them off. SIGHUP reads the configuration
    again, SIGUSR2 starts this command again in a process that takes over.

    ``post``: of a worker: it serves, reloads and ends at its parent's word, and its parent takes over. ``before``: from
    which process to take over, if there is one. ``proxy``: clients are served; else only gateways are that ask, and
    operators. Raises ConfigError.
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
        finding = Finding(given_sockets(os.environ, os.getpid()), before, backlog=BACKLOG)
        if post is None and proxy:
            await finding.ask(config.listen.port)
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
        listeners = Listeners(gateway, finding)
        cleanup.push_async_callback(listeners.close)
        if post is not None:
            await listeners.operators.open_unix(post.admin_socket)
        elif not before.found:
            await listeners.open_admin()
        tasks = TaskSet()
        cleanup.push_async_callback(tasks.close)
        starting = tasks.start(gateway.start(beside=post is not None or before.found), name="start", awaited=True)
        await first(tasks, starting, end.stop)
        if not starting.done():
            return
        await starting
        succession = Succession(listeners)
        cleanup.push_async_callback(succession.close)
        if post is None:
            if not proxy:
                await listeners.open_picker()
            else:
                port = await _begin(gateway, listeners, end, finding)
                succession.open(port)
                again = Again(succession, os.environ)
                cleanup.push_async_callback(again.close)
                loop.add_signal_handler(signal.SIGUSR2, again.request)
        else:
            going = tasks.start(post.may_serve(), name="wait for the parent")
            await first(tasks, going, end.stop)
            if end.stop.is_set():
                return
            if going.result():
                gateway.kept.read(again=True)
            gateway.kept.start()
            await listeners.clients.accept(post.listening())
            tasks.start(listeners.obey(post), name="pause at the parent's word")
            tasks.start(listeners.cover(post), name="accept for others at the parent's word")
        if listeners.tls:
            tasks.start(follow(lambda: listeners.tls), name="look at the listeners' TLS files")
        _say_endpoints(gateway)
        _relieve_collector()
        if post is None:
            where = f"on {url_of(gateway.config, port)}" if proxy else "gateways that ask"
            log.info("kvgate %s (%s) serves %s", __version__, BUILD, where)
            notify("READY=1")
        else:
            log.info("serves, one of %d workers", post.seat.count)
            post.serving()
        await first(tasks, end.stop, succession.taken)
        if post is None:
            await _leave(gateway, listeners, end, _told(succession, finding), succession.taken)
        else:
            await _leave(gateway, listeners, end, lambda: post.told, post.patience_over, post.leaving)


async def _begin(gateway: Gateway, listeners: Listeners, end: End, finding: Finding) -> int:
    """Accept clients, in the place of the process that did before, if there is one; returns the port in use. Raises
    ConfigError, once the answers that run by then have ended."""
    before = finding.before
    if not before.found:
        port = await listeners.open_clients()
        await listeners.open_picker()
        return port
    await before.stopped()
    gateway.kept.read(again=True)
    gateway.kept.start()
    port = await listeners.open_clients()
    try:
        await listeners.open_admin()
        await listeners.open_picker()
        await before.serving()
    except ConfigError as error:
        log.error("%s", error)
        told = frozenset((words.KEPT,) if before.give_up(error.message) or finding.are_kept else ())
        await _leave(gateway, listeners, end, lambda: told, end.stop)
        raise
    return port


def _told(succession: Succession, finding: Finding) -> Callable[[], frozenset[str]]:
    """How to end, as a worker's parent says it."""

    def told() -> frozenset[str]:
        how = {words.TAKEN: succession.taken.is_set(), words.KEPT: finding.are_kept or succession.successor is not None}
        return frozenset(word for word, is_so in how.items() if is_so)

    return told


def _say_endpoints(gateway: Gateway) -> None:
    for name, report in gateway.directory.readiness().items():
        log.info("model %s: %d of %d endpoints usable", name, report["usable"], report["endpoints"])
        for endpoint, reason in report["unusable"].items():
            log.warning("endpoint %s of model %s is not usable: %s", endpoint, name, reason)


async def _leave(
    gateway: Gateway,
    listeners: Listeners,
    end: End,
    told: Callable[[], Collection[str]],
    patience_over: asyncio.Event,
    left: Callable[[], None] = lambda: None,
) -> None:
    """Let running answers end, and lose nothing that has come. ``told``: how to end (``TAKEN``: another process serves,
    ``KEPT``: others have the clients' sockets, too; ``PATIENT``: this is yet to be said); it may change while clients
    are still accepted, which ``patience_over`` ends. ``left``: called when no more are accepted."""
    tasks = TaskSet()
    listen = gateway.config.listen
    patience = listen.lame_duck if end.patient or words.TAKEN in told() else 0.0
    if words.TAKEN not in told():
        gateway.doors.leave()
        notify("STOPPING=1")
        if patience:
            log.info("stopping: accepting for %g s more, not ready for new clients", patience)
            await first(tasks, asyncio.sleep(patience), patience_over, end.hurry)
            if words.PATIENT in told():
                await first(tasks, patience_over, end.hurry)
    log.info("stopping: %g s of grace for running answers", listen.grace)
    hold = 0.0
    if words.TAKEN in told():
        gateway.doors.server.leave(ready=True)
        await gateway.feed.release()
        hold = patience
    if words.KEPT in told():
        listeners.clients.stop()
    else:
        await listeners.clients.finish()
    left()
    clients = gateway.doors.server.drain(listen.grace, hold=hold, quiet=min(QUIET, patience))
    draining = tasks.start(_all(clients, listeners.drain_picker()), name="drain")
    await first(tasks, draining, end.hurry)
    await tasks.close()


async def _all(*waits: Awaitable[object]) -> None:
    await asyncio.gather(*waits)


def _relieve_collector() -> None:
    """Exclude all existing objects from garbage collection, and run the collector less often. No request leaves a
    reference cycle behind (tests/proxy/test_garbage.py), so there is little to collect."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, *gc.get_threshold()[1:])


def _secrets(config: Config) -> list[str]:
    """The secrets that must not appear in any log line."""
    keys = [*api_keys(config), *(secret for model in config.models for one in model.discover for secret in one.secrets)]
    with blaming(config, "client_keys", "file"):
        shared = filter(None, [config.sharing.password])
        return [*keys, *shared, *_of_tenants(config.tenants), *read_keys(config.client_keys)]


def _of_tenants(settings: TenantsSettings) -> list[str]:
    found = [settings.admin_token, None if settings.valkey is None else settings.valkey.password]
    return [secret for secret in found if secret]
