"""Notifies systemd of the service's state: the ``sd_notify`` protocol, one datagram for each message.

A service of ``Type=notify`` counts as started when it says ``READY=1``: what depends on it waits for an endpoint that
answers, not for a process that exists. Everywhere else (no ``NOTIFY_SOCKET``) all of this does nothing, and a message
that cannot be sent is never an error: the service manager has its own timeouts. See sd_notify(3).
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from gateway.errors import ConfigError

log = logging.getLogger("kvgate.notify")

T = TypeVar("T")


def notify(*assignments: str, status: str = "", environ: Mapping[str, str] = os.environ) -> None:
    """Send ``NAME=value`` assignments: ``READY=1``, ``STOPPING=1``.

    ``status``: one line for people, which ``systemctl status`` shows.
    """
    address = _address(environ.get("NOTIFY_SOCKET", ""))
    # A line break would end the value and begin another assignment.
    lines = [*assignments, *([f"STATUS={' '.join(status.split())}"] if status else [])]
    if address is None or not lines:
        return
    try:
        # A datagram to a full queue would block: the manager is then not reading, and we have answers to stream.
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC) as sender:
            sender.sendto("\n".join(lines).encode(), address)
    except OSError as error:
        log.warning("cannot notify the service manager of %s: %s", lines[0], error)


async def announced(reload: Awaitable[T], at: float, count: Callable[[T], int]) -> T:
    """What ``reload`` returns; the service manager hears that it runs and how it ended. ``at``: seconds of
    CLOCK_MONOTONIC. ``count``: of its changes. Raises ConfigError, which is logged here."""
    notify("RELOADING=1", f"MONOTONIC_USEC={int(at * 1e6)}")
    status = "a reload was broken off"
    try:
        done = await reload
        status = f"reloaded: {count(done)} changes"
        return done
    except ConfigError as error:
        status = f"not reloaded: {error.message}"
        log.error("%s; nothing was changed", status)
        raise
    finally:
        notify("READY=1", status=status)


def _address(name: str) -> str | None:
    """A path, or an abstract socket's name (written with ``@``); None where there is nothing that we can send to."""
    if name.startswith("@"):
        return "\0" + name[1:]
    if name.startswith("/"):
        return name
    if name:
        log.warning("NOTIFY_SOCKET=%s is neither a path nor an abstract socket: not notifying", name)
    return None
