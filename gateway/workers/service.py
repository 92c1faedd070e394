"""``kvgate serve`` with several workers: the parent. It serves no client; it keeps the ports, the workers and what
operators see of them as one."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from gateway import __version__
from gateway.config.settings import Config
from gateway.core.build import BUILD
from gateway.core.clock import SystemClock
from gateway.core.tasks import TaskSet
from gateway.errors import ConfigError
from gateway.framework import Clock
from gateway.notify import notify
from gateway.observability.logs import configure
from gateway.proxy.admin.listener import Admin
from gateway.proxy.http.listener import Listener
from gateway.serve import BACKLOG, End
from gateway.sharing.load_memory import LoadMemory
from gateway.sharing.seat import Seat
from gateway.tenants.limits_table import LimitsTable
from gateway.workers import words
from gateway.workers.asking import Asking, NoAnswer
from gateway.workers.crew import Crew
from gateway.workers.figures import Figures
from gateway.workers.front import Front
from gateway.workers.listening import bound
from gateway.workers.private_directory import private_directory
from gateway.workers.reloads import Reloads, Texts
from gateway.workers.worker import Command, Worker

log = logging.getLogger("kvgate.workers")

Check = Callable[[str], Config]
"""A text of the configuration's file, checked. Raises ConfigError."""


def command(environ: Mapping[str, str]) -> Command:
    """This process's own command line: its workers run the same code with the same options."""
    return Command([sys.executable, *sys.orig_argv[1:]], environ)


class Service:
    """A parent and what it has. ``sockets``: one for each worker. ``adopted``: called with each configuration that
    comes into force by a reload."""

    def __init__(
        self,
        texts: Texts,
        check: Check,
        sockets: Sequence[socket.socket],
        directory: Path,
        how: Command,
        clock: Clock,
        adopted: Callable[[Config], None],
    ) -> None:
        self._sockets = sockets
        self._directory = directory
        self._loads = LoadMemory.create()
        self._limits = LimitsTable.create(len(sockets))
        self._how = how
        self._clock = clock
        self._tasks = TaskSet()
        self._signals = 0
        self.asking = Asking()
        self.crew = Crew(len(sockets), self._start, self._died, clock)
        self.figures = Figures(self.crew, self.asking, clock, __version__)
        self.reloads = Reloads(self.crew, self.asking, texts, check, adopted, clock)
        self.front = Front(self.crew, self.asking, self.reloads.reload)
        self.admin = Admin(self.figures.render, self.front.routes())

    def open(self) -> None:
        self.crew.open()
        self._tasks.start(self.figures.follow(), name="look at the workers' metrics")

    def hang_up(self) -> None:
        """SIGHUP came. At most one reload runs and one waits, which reads changes made since the first began."""
        if self._signals < 2:
            self._signals += 1
            self._tasks.start(self._reload_by_signal(), name="reload")

    def stop_listening(self) -> None:
        """Without this the port would listen on after the workers have closed it."""
        for one in self._sockets:
            one.close()

    async def close(self) -> None:
        """Kill what still runs."""
        await self.front.close()
        await self._tasks.close()
        await self.crew.close()
        await self.asking.close()
        self.stop_listening()
        os.close(self._loads)
        self._limits.close()

    async def _reload_by_signal(self) -> None:
        try:
            with contextlib.suppress(ConfigError):  # it is logged already
                await self.reloads.reload()
        finally:
            self._signals -= 1

    def _start(self, number: int) -> Worker:
        seat = Seat(
            number,
            len(self._sockets),
            str(self._directory),
            loads_fd=self._loads,
            limits_fd=self._limits.fd,
            listen_fd=self._sockets[number].fileno(),
        )
        return Worker(seat, self._how, self._clock, self._told)

    def _told(self, worker: Worker, word: str) -> None:
        if word == words.READY:
            self._tasks.start(self._let_serve(worker), name=f"let worker {worker.number} serve")
        elif word == words.SERVING:
            self.crew.serves()

    async def _let_serve(self, worker: Worker) -> None:
        """It serves as all others do: by the configuration in force, and nobody at endpoints that are drained."""
        try:
            async with self.reloads.one_at_a_time:
                await self.reloads.bring_up_to_date(worker)
                await self.front.teach(worker)
                worker.go()
        except (ConfigError, OSError, NoAnswer) as error:
            if not worker.ended.done():
                log.error("worker %d cannot serve as the others do, and starts anew: %s", worker.number, error)
                worker.kill()

    def _died(self, worker: Worker) -> None:
        self.figures.gone(worker)


async def supervise(file: Path, text: str, check: Check, count: int, *, environ: Mapping[str, str]) -> int:
    """Serve with ``count`` workers until SIGTERM or SIGINT comes; then let running answers end. A second signal cuts
    them off. SIGHUP reloads all. Returns the exit status.

    ``text``: of ``file``, as it was read. Raises ConfigError.
    """
    config = check(text)
    end = End(None, None)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end.on, number)
    async with contextlib.AsyncExitStack() as cleanup:
        clock = SystemClock()
        logs = configure(config.log, clock=clock)
        cleanup.callback(logs.close)
        cleanup.callback(log.info, "stopped")
        in_force = [config]

        def adopted(config: Config) -> None:
            in_force[0] = config
            logs.change(config.log.level, ())

        try:
            directory = cleanup.enter_context(private_directory())
            texts = Texts(file, directory)
            texts.begin(text)
        except OSError as error:
            raise ConfigError(f"listen.workers: no directory for the workers' sockets: {error}") from error
        sockets = bound(config.listen.host, config.listen.port, count)
        service = Service(texts, check, sockets, directory, command(environ), clock, adopted)
        cleanup.push_async_callback(service.close)
        loop.add_signal_handler(signal.SIGHUP, service.hang_up)
        cleanup.callback(loop.remove_signal_handler, signal.SIGHUP)
        operators = Listener(service.admin.runner(), backlog=BACKLOG)
        cleanup.push_async_callback(operators.close)
        if config.listen.admin:
            host, _, port = config.listen.admin.rpartition(":")
            try:
                admin_port = await operators.open(host.strip("[]"), int(port))
            except OSError as error:
                raise ConfigError(f"listen.admin: cannot listen on {host}:{port}: {error.strerror}") from error
            log.info("metrics on http://%s:%d/metrics", host, admin_port)
        service.open()
        tasks = TaskSet()
        cleanup.push_async_callback(tasks.close)
        stopping = tasks.start(end.stop.wait(), name="wait for a signal")
        serving = tasks.start(service.crew.all_serve.wait(), name="wait until all serve")
        failed = service.crew.failed
        await asyncio.wait((stopping, serving, failed), return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            log.info("kvgate %s (%s) serves on %s with %d workers", __version__, BUILD, _url(config, sockets[0]), count)
            notify("READY=1")
            await asyncio.wait((stopping, failed), return_when=asyncio.FIRST_COMPLETED)
        status = failed.result() if failed.done() else 0
        notify("STOPPING=1")
        listen = in_force[0].listen
        lame_duck = listen.lame_duck if end.patient else 0.0
        log.info("stopping: accepting for %g s more, %g s of grace for running answers", lame_duck, listen.grace)
        service.stop_listening()
        ending = tasks.start(service.crew.stop(listen.grace, lame_duck), name="stop the workers")
        hurrying = tasks.start(end.hurry.wait(), name="wait for a second signal")
        await asyncio.wait((ending, hurrying), return_when=asyncio.FIRST_COMPLETED)
        if not ending.done():
            service.crew.hurry()
            await ending
        return status


def _url(config: Config, listening: socket.socket) -> str:
    host = f"[{config.listen.host}]" if ":" in config.listen.host else config.listen.host
    return f"{'http' if config.listen.tls is None else 'https'}://{host}:{listening.getsockname()[1]}"
