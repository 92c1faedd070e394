"""Where gateways ask the endpoint picker: its listener, and that of its health."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from gateway.addresses import BACKLOG, split_address
from gateway.core.tls import KeyPair, WatchedContext
from gateway.epp.door import PickerDoor
from gateway.epp.settings import PickerSettings
from gateway.epp.transport.certificates import of_files, self_signed
from gateway.epp.transport.limits import Limits
from gateway.epp.transport.server import Server, methods
from gateway.restart.listener import Listener


class PickerListeners:
    """``listeners``: by name. ``tls``: of the first; None: plaintext."""

    def __init__(self, door: PickerDoor, settings: PickerSettings, max_body: int) -> None:
        """``max_body``: bytes of a request's. Raises ConfigError, whose ``param`` is a key of ``epp.tls``, or None."""
        self._door = door
        self._settings = settings
        self.tls = _context(settings)
        self._server = Server(methods(lambda: door.ready, door.open), Limits.for_bodies(max_body))
        self._health = Server(methods(lambda: door.ready))
        self.listeners = {
            "picker": Listener(self._server, backlog=BACKLOG, tls=self.tls),
            "picker-health": Listener(self._health, backlog=BACKLOG),
        }

    def places(self) -> Sequence[tuple[str, Listener, str, int]]:
        """Those that are to be opened: name, listener, host and port."""
        found = []
        for name, address in (("picker", self._settings.listen), ("picker-health", self._settings.health)):
            if address:
                found.append((name, self.listeners[name], *split_address(address)))
        return found

    async def drain(self, seconds: float) -> None:
        """End all calls within so many seconds; stop listening before."""
        await asyncio.gather(self._door.drain(seconds), self._server.drain(seconds))

    async def close(self) -> None:
        for listener in self.listeners.values():
            await listener.close()


def _context(settings: PickerSettings) -> WatchedContext | None:
    if settings.tls is None:
        return None
    if settings.tls == "self-signed":
        return self_signed()
    return of_files(KeyPair(settings.tls.certificate, settings.tls.key))
