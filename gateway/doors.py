"""Where requests come in: the server of clients and, where gateways ask by ext-proc, the picker's door."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.config.settings import Config
from gateway.core.tls import WatchedContext
from gateway.errors import ConfigError
from gateway.proxy.http.server import Server
from gateway.proxy.http.tls import context_of
from gateway.tenants.directory import Directory
from gateway.tenants.gate import Gate
from gateway.wiring import Wiring

if TYPE_CHECKING:
    from gateway.epp.door import PickerDoor


class Doors:
    """``server``: of clients. ``picker``: of gateways; None: none asks. ``tls``: of the clients' listener; None: plain
    HTTP."""

    def __init__(self, wiring: Wiring, tenants: Directory, gate: Gate) -> None:
        """Raises ConfigError."""
        patience = wiring.config.timeouts.receive
        self.server = Server(wiring.director, wiring.directory, tenants, gate, patience=patience)
        self.picker = _picker_door(wiring, tenants, self.server)
        self.tls = listening(wiring.config)

    def use(self, wiring: Wiring) -> None:
        """Use this one from the next request on."""
        self.server.use(wiring.director, wiring.directory, patience=wiring.config.timeouts.receive)
        if self.picker is not None and wiring.picker is not None:
            self.picker.use(wiring.picker, wiring.directory)

    async def use_certificate(self, tls: WatchedContext | None) -> None:
        """Of the clients' listener. Whether it speaks TLS only a restart can change."""
        if self.tls is not None and tls is not None:
            await self.tls.become(tls)

    def leave(self) -> None:
        """Be not ready for new clients and gateways."""
        self.server.leave()
        if self.picker is not None:
            self.picker.leave()

    async def close(self) -> None:
        """End what gateways still ask. Clients' connections are the listeners'."""
        if self.picker is not None:
            await self.picker.close()


def _picker_door(wiring: Wiring, tenants: Directory, server: Server) -> PickerDoor | None:
    if wiring.picker is None:
        return None
    from gateway.epp.door import PickerDoor  # not before: protobuf is of no use without it

    return PickerDoor(wiring.picker, wiring.directory, tenants, server.stages)


def listening(config: Config) -> WatchedContext | None:
    """The TLS context of the clients' listener; None: plain HTTP. Raises ConfigError."""
    if config.listen.tls is None:
        return None
    try:
        return context_of(config.listen.tls)
    except ConfigError as error:
        raise config.origin.error(("listen", "tls", *filter(None, [error.param])), error.message) from error.__cause__
