"""``kvgate serve`` with several workers: the parent. It serves no client; it keeps the ports, the workers and what
operators see of them as one."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from pathlib import Path

from gateway import __version__
from gateway.addresses import BACKLOG, admin_address, url_of
from gateway.config.settings import Config
from gateway.core.build import BUILD
from gateway.core.clock import SystemClock
from gateway.core.tasks import TaskSet
from gateway.ending import End, first
from gateway.errors import ConfigError
from gateway.framework import Clock
from gateway.notify import notify
from gateway.observability.logs import configure
from gateway.proxy.admin.listener import Admin
from gateway.proxy.settings import ListenSettings
from gateway.restart.activation import given_sockets
from gateway.restart.again import Again
from gateway.restart.finding import Finding
from gateway.restart.listener import Listener
from gateway.restart.succession import Held, Succession
from gateway.restart.takeover import TakeOver
from gateway.sharing.load_memory import LoadMemory
from gateway.sharing.seat import Seat
from gateway.tenants.limits_table import LimitsTable
from gateway.workers import words
from gateway.workers.asking import Asking, NoAnswer
from gateway.workers.cover import Cover
from gateway.workers.crew import Crew
from gateway.workers.figures import Figures
from gateway.workers.front import Front
from gateway.workers.listening import seated
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
    """A parent and what it has. ``sockets``: of each worker. ``adopted``: called with each configuration that comes
    into force by a reload.

    ``may_serve``: set while workers may begin to accept clients. ``all_loaded``: set once all of them could.
    """

    def __init__(
        self,
        texts: Texts,
        check: Check,
        sockets: Sequence[Sequence[socket.socket]],
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
        self._loaded: set[Worker] = set()
        self._again = False
        self._first_serves = asyncio.Event()
        self.may_serve = asyncio.Event()
        self.all_loaded = asyncio.Event()
        self.asking = Asking()
        self.crew = Crew(len(sockets), self._start, self._died, clock)
        all_share = len(sockets) > 1 and sockets[0] == sockets[1]  # then all accept whatever comes, anyway
        self.cover = Cover(lambda: self.crew.serving if self.sockets and not all_share else ())
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

    @property
    def sockets(self) -> list[socket.socket]:
        """The clients', of all workers, as long as they are kept."""
        return [one for one in dict.fromkeys(itertools.chain(*self._sockets)) if one.fileno() >= 0]

    async def pause(self) -> None:
        """Let no worker accept clients, nor write files."""
        self.may_serve.clear()
        await asyncio.gather(*(worker.pause() for worker in self.crew.alive))

    def resume(self) -> None:
        self.may_serve.set()
        for worker in self.crew.alive:
            worker.resume()

    def begin(self, *, again: bool) -> None:
        """Let workers accept clients. ``again``: once the first has read what another service has left in files: what
        the others were charged before would be lost by that."""
        self._again = again
        if not again:
            self._first_serves.set()
        self.may_serve.set()

    def stop_listening(self) -> None:
        """Keep the sockets no more: else the port would listen on after the workers have closed it."""
        for one in self.sockets:
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
            version=__version__,
        )
        ports = [[one.fileno() for one in each] for each in self._sockets]
        return Worker(seat, self._how, self._clock, self._told, ports)

    def _told(self, worker: Worker, word: str) -> None:
        if word == words.READY:
            self._tasks.start(self._let_serve(worker), name=f"let worker {worker.number} serve")
        elif word == words.SERVING:
            if worker.number == 0:
                self._first_serves.set()
            self.crew.serves()
            self.cover.serves(worker)
        elif word == words.LEAVING:
            self.cover.leaves(worker)

    async def _let_serve(self, worker: Worker) -> None:
        """It serves as all others do: by the configuration in force, and nobody at endpoints that are drained."""
        if not self.may_serve.is_set():
            self._loaded.add(worker)
            if len(self._loaded) == self.crew.count:
                self.all_loaded.set()
            await self.may_serve.wait()
        if worker.number != 0:
            await self._first_serves.wait()
        try:
            async with self.reloads.in_force(worker):
                worker.is_asked = True  # a reload, drain or pause that comes before it says that it serves is its, too
                await self.front.teach(worker)
                worker.go(again=self._again and not self._first_serves.is_set())
        except (ConfigError, OSError, NoAnswer) as error:
            if not worker.ended.done():
                log.error("worker %d cannot serve as the others do, and starts anew: %s", worker.number, error)
                worker.kill()

    def _died(self, worker: Worker) -> None:
        self.figures.gone(worker)
        self.cover.leaves(worker)
        self._loaded.discard(worker)


class Place:
    """The service's place on its ports, for ``Succession``. ``listen``: as it was started."""

    def __init__(self, service: Service, operators: Listener, listen: ListenSettings) -> None:
        self._service = service
        self._operators = operators
        self._listen = listen

    def held(self) -> list[Held]:
        host, port = admin_address(self._listen)
        return [
            Held("clients", self._listen.host, self._listen.port, self._service.sockets),
            Held("admin", host, port, self._operators.sockets),
        ]

    async def pause(self) -> None:
        self._operators.pause()
        await self._service.pause()

    async def resume(self) -> None:
        self._service.resume()
        await self._operators.resume()

    def gone_to(self, pid: int) -> None:
        notify(f"MAINPID={pid}")
        self._operators.stop()
        self._service.stop_listening()


async def supervise(
    file: Path, text: str, check: Check, count: int, *, environ: MutableMapping[str, str], before: TakeOver
) -> int:
    """Serve with ``count`` workers until SIGTERM or SIGINT comes, or another process takes over; then let running
    answers end. A second signal cuts them off. SIGHUP reloads all, SIGUSR2 starts this command again in a process that
    takes over. Returns the exit status.

    ``text``: of ``file``, as it was read. ``before``: from which process to take over, if there is one. Raises
    ConfigError.
    """
    config = check(text)
    end = End(None, None)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end.on, number)
    loop.add_signal_handler(signal.SIGUSR2, log.error, "SIGUSR2: not ready to be replaced")
    async with contextlib.AsyncExitStack() as cleanup:
        cleanup.enter_context(before)
        clock = SystemClock()
        logs = configure(config.log, clock=clock)
        cleanup.callback(logs.close)
        cleanup.callback(log.info, "stopped")
        in_force = [config]

        def adopted(config: Config) -> None:
            in_force[0] = config
            logs.change(config.log.level, ())

        finding = Finding(given_sockets(environ, os.getpid()), before, backlog=BACKLOG)
        await finding.ask(config.listen.port)
        try:
            directory = cleanup.enter_context(private_directory())
            texts = Texts(file, directory)
            texts.begin(text)
        except OSError as error:
            raise ConfigError(f"listen.workers: no directory for the workers' sockets: {error}") from error
        listen = config.listen
        sockets = seated(finding.existing("clients", listen.host, listen.port), listen.host, listen.port, count)
        service = Service(texts, check, sockets, directory, command(environ), clock, adopted)
        cleanup.push_async_callback(service.close)
        loop.add_signal_handler(signal.SIGHUP, service.hang_up)
        cleanup.callback(loop.remove_signal_handler, signal.SIGHUP)
        operators = Listener(service.admin.runner(), backlog=BACKLOG)
        cleanup.push_async_callback(operators.close)
        if not before.found:
            await _open_admin(operators, finding, listen)
            service.begin(again=False)
        service.open()
        tasks = TaskSet()
        cleanup.push_async_callback(tasks.close)
        succession = Succession(Place(service, operators, listen))
        cleanup.push_async_callback(succession.close)
        failed = service.crew.failed
        if before.found:
            await first(tasks, end.stop, failed, service.all_loaded)
            if not end.stop.is_set() and not failed.done():
                await before.stopped()
                service.begin(again=True)
        kept = finding.are_kept
        try:
            await before.hold(first(tasks, end.stop, failed, service.crew.all_serve))
            if before.found and service.crew.all_serve.is_set():
                await _open_admin(operators, finding, listen)
                await before.serving()
        except ConfigError as error:  # some workers serve already
            log.error("%s", error)
            kept |= before.give_up(error.message)
            await _leave(service, succession, end, in_force[0].listen, kept=kept)
            raise
        if not service.crew.all_serve.is_set():
            kept |= before.give_up("its workers could not start" if failed.done() else "it was told to stop")
        else:
            url = url_of(config, service.sockets[0].getsockname()[1])
            log.info("kvgate %s (%s) serves on %s with %d workers", __version__, BUILD, url, count)
            notify("READY=1")
            succession.open(service.sockets[0].getsockname()[1])
            again = Again(succession, environ)
            cleanup.push_async_callback(again.close)
            loop.add_signal_handler(signal.SIGUSR2, again.request)
            await first(tasks, end.stop, failed, succession.taken)
        await _leave(service, succession, end, in_force[0].listen, kept=kept)
        return failed.result() if failed.done() else 0


async def _open_admin(operators: Listener, finding: Finding, listen: ListenSettings) -> None:
    if not listen.admin:
        return
    host, port = admin_address(listen)
    used = await operators.accept(finding.sockets("admin", host, port))
    log.info("metrics on http://%s:%d/metrics", listen.admin.rpartition(":")[0], used)


async def _leave(service: Service, succession: Succession, end: End, listen: ListenSettings, *, kept: bool) -> None:
    """Let the workers end. ``kept``: another process keeps the clients' sockets."""
    tasks = TaskSet()
    if not succession.taken.is_set():
        notify("STOPPING=1")
        if end.patient and listen.lame_duck:
            log.info("stopping: accepting for %g s more", listen.lame_duck)
            service.crew.be_patient()
            await first(tasks, asyncio.sleep(listen.lame_duck), succession.taken, end.hurry)
    log.info("stopping: %g s of grace for running answers", listen.grace)
    how = {words.KEPT: kept or succession.successor is not None, words.TAKEN: succession.taken.is_set()}
    # In one step with the look at what is shared: who asks for the sockets after it gets none.
    service.stop_listening()
    told = [word for word, is_so in how.items() if is_so]
    hold = listen.lame_duck if how[words.TAKEN] else 0.0
    ending = tasks.start(service.crew.stop(hold + listen.grace, told), name="stop the workers")
    await first(tasks, ending, end.hurry)
    if not ending.done():
        service.crew.hurry()
        await ending
    await tasks.close()
