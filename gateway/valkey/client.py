"""Clients of a Valkey or Redis server, made from its URL, and what they may raise."""

from __future__ import annotations

import asyncio
from typing import Any

from gateway.errors import ConfigError

CONNECTING = 5.0
"""Seconds for a connection. No request waits for it."""

TIMEOUT = 15.0
"""Seconds for all commands of one step: to read 10,000 keys takes half a second."""


class Away(Exception):
    """The server cannot be reached now, or has no place for one more command."""


class Refused(Away):
    """The server has refused this command, for a reason that its text says."""


SAME = {"valkey": "redis", "valkeys": "rediss"}
"""Schemes of Valkey's own clients, and those that redis-py knows for the same."""


def connect(url: str, *, decode: bool = True) -> Any:
    """A client of the server, not connected yet, for use in one task at a time. It tries nothing twice: its caller
    does. ``decode``: answers are text, not bytes. Raises ConfigError if the package is not installed, or the URL is no
    server's.

    Commands run in ``limited``. With a timeout of its own, the client would wait with ``asyncio.wait_for``, which
    before Python 3.12 may lose the cancellation of its task.
    """
    try:
        import hiredis  # noqa: F401 -- the package's own reading is twenty times slower
        from redis.asyncio import Redis
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff
    except ImportError as error:
        raise ConfigError("it needs a package that is not installed: pip install 'kvgate[valkey]'") from error
    scheme, separator, rest = url.partition("://")
    try:
        return Redis.from_url(
            f"{SAME.get(scheme, scheme)}{separator}{rest}",
            protocol=2,
            decode_responses=decode,
            encoding_errors="replace",
            socket_timeout=None,
            socket_connect_timeout=CONNECTING,
            retry=Retry(NoBackoff(), 0),
            client_name="kvgate",
        )
    except ValueError as error:  # its text may have a part of the URL, and so of the password
        raise ConfigError("its url is not one of a Valkey or Redis server") from error


def limited() -> asyncio.Timeout:
    """For the commands of one step. Raises TimeoutError."""
    return asyncio.timeout(TIMEOUT)


def failures() -> tuple[type[Exception], ...]:
    """What may be raised while the server is away, or does not do as it is told."""
    from redis.exceptions import RedisError

    return Away, RedisError, OSError, TimeoutError
