"""The clients' port, opened once for each worker.

The system spreads new connections over the sockets that listen on one port (SO_REUSEPORT). The parent keeps them all:
connections that wait in a dead worker's queue are accepted by its successor. It binds them only. A socket listens from
when its worker first serves, so that until then clients are refused, as by a single process.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence

from gateway.errors import ConfigError


def seated(found: Sequence[socket.socket], host: str, port: int, count: int) -> list[list[socket.socket]]:
    """The sockets of ``count`` workers: those that were ``found``, and more beside them where they are fewer. Where no
    more may listen, since somebody else opened them for himself, all workers have the same. Raises ConfigError."""
    if not found:
        return [[one] for one in bound(host, port, count)]
    if len(found) < count:
        try:
            found = [*found, *bound(host, found[0].getsockname()[1], count - len(found), shared=True)]
        except ConfigError:
            return [list(found) for _ in range(count)]
    return [list(found[number::count]) for number in range(count)]


def bound(host: str, port: int, count: int, *, shared: bool = False) -> Sequence[socket.socket]:
    """``count`` sockets on the first address of ``host``. ``port``: 0 for a free one, which is then that of all.
    ``shared``: beside others that listen there.

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
            if made[1:] or shared:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # as asyncio has it
            one.setblocking(False)
            one.bind(address)  # the first one alone, so that a second service by mistake is an error
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            address = one.getsockname()
    except OSError as error:
        for one in made:
            one.close()
        raise ConfigError(f"listen: cannot listen on {host}:{port}: {error.strerror or error}") from error
    return made
