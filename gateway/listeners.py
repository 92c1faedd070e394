"""The listeners of one process: of clients, of operators, of who reads metrics, of gateways that ask; and its place on
their ports for a successor."""

from __future__ import annotations

import logging
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gateway.addresses import BACKLOG, admin_address, split_address
from gateway.app import Gateway
from gateway.core.tls import WatchedContext
from gateway.errors import ConfigError
from gateway.notify import notify
from gateway.restart.finding import Finding, cannot_listen
from gateway.restart.listener import Listener
from gateway.restart.succession import Held
from gateway.workers.post import Post

if TYPE_CHECKING:
    from gateway.picker_listeners import PickerListeners

log = logging.getLogger("kvgate.app")


class Listeners:
    """The listeners of ``gateway``, and their place for ``Succession``. ``clients``, ``operators``, ``metrics``;
    ``picker``: of gateways that ask; None: none does."""

    def __init__(self, gateway: Gateway, finding: Finding) -> None:
        """Raises ConfigError."""
        self.clients = Listener(gateway.doors.server.runner(), backlog=BACKLOG, tls=gateway.doors.tls)
        self.operators = Listener(gateway.admin.runner(), backlog=BACKLOG)
        self.metrics = Listener(gateway.admin.without_routes().runner(), backlog=BACKLOG)
        self.picker: PickerListeners | None = None
        if gateway.doors.picker is not None and gateway.config.epp is not None:
            from gateway.picker_listeners import PickerListeners  # not before: protobuf is of no use without it

            try:
                self.picker = PickerListeners(gateway.doors.picker, gateway.config.epp, gateway.config.listen.max_body)
            except ConfigError as error:
                path = ("epp", "tls", *filter(None, [error.param]))
                raise gateway.config.origin.error(path, error.message) from error.__cause__
        self._gateway = gateway
        self._finding = finding
        self._places: dict[str, tuple[Listener, str, int]] = {}

    async def open_clients(self) -> int:
        """Accept clients; returns the port in use. Raises ConfigError."""
        listen = self._gateway.config.listen
        return await self._open("clients", self.clients, listen.host, listen.port)

    async def open_admin(self) -> None:
        """Accept operators, and who reads metrics, if they have listeners. Raises ConfigError."""
        listen = self._gateway.config.listen
        if listen.admin:
            used = await self._open("admin", self.operators, *admin_address(listen))
            log.info("metrics on http://%s:%d/metrics", listen.admin.rpartition(":")[0], used)
        if listen.metrics:
            host, port = split_address(listen.metrics)
            used = await self._open("metrics", self.metrics, host, port)
            log.info("metrics alone on http://%s:%d/metrics", host, used)

    async def open_picker(self) -> None:
        """Accept gateways that ask, if any are expected. Raises ConfigError."""
        if self.picker is not None:
            for name, listener, host, port in self.picker.places():
                used = await self._open(name, listener, host, port)
                log.info("%s: gRPC on %s:%d", name, host, used)

    async def _open(self, name: str, listener: Listener, host: str, port: int) -> int:
        try:
            used = await listener.accept(self._finding.sockets(name, host, port))
        except OSError as error:
            raise cannot_listen(name, host, port, error) from error
        self._places[name] = listener, host, port
        return used

    @property
    def tls(self) -> Sequence[WatchedContext]:
        """The contexts whose files may change."""
        contexts = (self._gateway.doors.tls, None if self.picker is None else self.picker.tls)
        return [context for context in contexts if context is not None]

    def held(self) -> list[Held]:
        return [Held(name, host, port, one.sockets) for name, (one, host, port) in self._places.items()]

    async def pause(self) -> None:
        self.clients.pause()
        for listener in (self.metrics, *self._pickers()):
            listener.pause()
        if "admin" in self._places:  # a worker's serves its parent
            self.operators.pause()
        await self._gateway.kept.pause()

    async def resume(self) -> None:
        self._gateway.kept.start()
        await self.clients.resume()
        await self.operators.resume()
        for listener in (self.metrics, *self._pickers()):
            await listener.resume()

    def gone_to(self, pid: int) -> None:
        notify(f"MAINPID={pid}")
        self.clients.stop()
        self.operators.stop()
        for listener in (self.metrics, *self._pickers()):
            listener.stop()

    async def drain_picker(self) -> None:
        """Accept no more gateways, and end all calls, so that no stream of a client breaks."""
        settings = self._gateway.config.epp
        if self.picker is not None and settings is not None:
            for listener in self._pickers():
                listener.stop()
            await self.picker.drain(settings.drain)

    def _pickers(self) -> Sequence[Listener]:
        return () if self.picker is None else tuple(self.picker.listeners.values())

    async def obey(self, post: Post) -> None:
        """Pause and go on at a worker's parent's word."""
        while True:
            if await post.pause_asked():
                await self.pause()
                post.paused()
            else:
                await self.resume()

    async def cover(self, post: Post) -> None:
        """Accept the clients of other workers at a worker's parent's word, and leave them to these again."""
        covered: dict[int, list[socket.socket]] = {}
        while True:
            number, begins = await post.cover_asked()
            if begins and number not in covered:
                covered[number] = post.listening(number)
                await self.clients.add(covered[number])
                log.info("accepting the clients of worker %d, too", number)
            elif not begins and number in covered:
                self.clients.remove(covered.pop(number))

    async def close(self) -> None:
        await self.clients.close()
        await self.operators.close()
        await self.metrics.close()
        if self.picker is not None:
            await self.picker.close()
