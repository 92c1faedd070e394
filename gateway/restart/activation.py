"""Listening sockets that the service manager has opened for us (socket activation, sd_listen_fds(3)).

They stay open while kvgate restarts: clients that connect meanwhile wait, and none is refused.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import MutableMapping

from gateway.errors import ConfigError
from gateway.restart.sockets import is_listening

FIRST = 3
"""The number of the first descriptor."""

NAMES = ("clients", "admin")
"""The listeners, in the order in which sockets without these names are taken."""


def given_sockets(environ: MutableMapping[str, str], pid: int) -> dict[str, list[socket.socket]]:
    """The sockets by listener, ``clients`` and ``admin``; empty where none was given to the process ``pid``.

    A socket belongs to the listener that its name says (``FileDescriptorName=``). If no socket has such a name, the
    first is the clients', and the second the operators'. The variables are removed: they are not for our children.
    Raises ConfigError.
    """
    told = {name: environ.pop(name, "") for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")}
    if told["LISTEN_PID"] != str(pid) or not told["LISTEN_FDS"].isdigit():
        return {}
    names = told["LISTEN_FDNAMES"].split(":")
    found: dict[str, list[socket.socket]] = {}
    count = int(told["LISTEN_FDS"])
    if not any(name in NAMES for name in names):
        names = list(NAMES)
    with contextlib.ExitStack() as opened:
        for place in range(count):
            name = names[place] if place < len(names) else ""
            if name not in NAMES:
                raise ConfigError(
                    f"the service manager's socket {place + 1} is called {name!r}: kvgate knows clients and admin "
                    "(FileDescriptorName=)"
                )
            given = opened.enter_context(_opened(FIRST + place, name))
            if not is_listening(given) or given.family not in (socket.AF_INET, socket.AF_INET6):
                raise ConfigError(f"the service manager's socket {name} is not a TCP socket that listens")
            given.setblocking(False)
            found.setdefault(name, []).append(given)
        opened.pop_all()
    return found


def _opened(number: int, name: str) -> socket.socket:
    try:
        os.set_inheritable(number, False)
        return socket.socket(fileno=number)
    except OSError as error:
        raise ConfigError(f"the service manager's socket {name} cannot be used: {error.strerror}") from error
