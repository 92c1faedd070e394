"""Where a listener's sockets come from: given by the service manager, by the process that served before, or opened."""

from __future__ import annotations

import socket
from collections.abc import Mapping

from gateway.errors import ConfigError
from gateway.restart.activation import NAMES
from gateway.restart.sockets import open_sockets
from gateway.restart.takeover import TakeOver

KEYS = {NAMES[1]: "listen.admin", "metrics": "listen.metrics", "picker": "epp.listen", "picker-health": "epp.health"}
"""Of listeners, where they are configured."""


class Finding:
    """``given``: by the service manager, by listener. ``before``: from which process to take over, if there is one.
    ``backlog``: connections that may wait to be accepted."""

    def __init__(self, given: Mapping[str, list[socket.socket]], before: TakeOver, *, backlog: int) -> None:
        self.given = given
        self.before = before
        self._backlog = backlog

    async def ask(self, port: int) -> None:
        """Ask the process that serves clients on ``port`` so far, if there is one; see ``TakeOver.find``."""
        await self.before.find(0 if NAMES[0] in self.given else port)

    def existing(self, name: str, host: str, port: int) -> list[socket.socket]:
        """Those of the listener that are there already; empty where none are."""
        return self.given.get(name) or self.before.take(name, host, port)

    def sockets(self, name: str, host: str, port: int) -> list[socket.socket]:
        """All of the listener; they are opened where none are there. Raises ConfigError."""
        try:
            return self.existing(name, host, port) or open_sockets(
                host, port, backlog=self._backlog, shared=self.before.found
            )
        except OSError as error:
            raise cannot_listen(name, host, port, error) from error

    @property
    def are_kept(self) -> bool:
        """Whether the service manager keeps the clients' sockets, whatever becomes of this process."""
        return NAMES[0] in self.given


def cannot_listen(name: str, host: str, port: int, error: OSError) -> ConfigError:
    key = KEYS.get(name, "listen")
    return ConfigError(f"{key}: cannot listen on {host}:{port}: {error.strerror or error}")
