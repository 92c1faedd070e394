"""The clients' port, opened once for each worker.

The system spreads new connections over the sockets that listen on one port (SO_REUSEPORT). The parent keeps them all:
connections that wait in a dead worker's queue are accepted by its successor. It binds them only. A socket listens from
when its worker first serves, so that until then clients are refused, as by a single process.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence

from gateway.errors import ConfigError


def bound(host: str, port: int, count: int) -> Sequence[socket.socket]:
    """``count`` sockets on the first address of ``host``. ``port``: 0 for a free one, which is then that of all.

    Raises ConfigError.
    """
    made: list[socket.socket] = []
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        for _ in range(count):
            one = socket.socket(family, socket.SOCK_STREAM)
            made.append(one)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # as asyncio has it
            one.setblocking(False)
            one.bind(address)
            address = one.getsockname()
    except OSError as error:
        for one in made:
            one.close()
        raise ConfigError(f"listen: cannot listen on {host}:{port}: {error.strerror or error}") from error
    return made
