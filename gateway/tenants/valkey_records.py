"""How tenants and keys stand in Valkey: the names, the hashes, and the message about a change.

| name (``S``: the scope) | what |
|---|---|
| ``kvgate:S:key:SHA256``, ``kvgate:S:tenant:NAME`` | a hash: what is no default; JSON, but for words |
| ``kvgate:S:keys``, ``kvgate:S:tenants`` | the sets of all SHA256 and all NAME |
| ``kvgate:S:tenants-version`` | the number of changes so far |
| channel ``kvgate:S:tenants-changed`` | JSON of each change: its version, and whose hashes it changed |
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from gateway.errors import ConfigError
from gateway.tenants.changes import plain
from gateway.tenants.settings import TenantKeySettings, TenantSettings, ValkeySettings

CONNECTING = 5.0
"""Seconds for a connection. No request waits for it."""

TIMEOUT = 15.0
"""Seconds for all commands of one step: to read 10,000 keys takes half a second."""

WORDS = frozenset({"id", "sha256", "tenant", "expires", "name"})
"""Fields that stand in a hash as they are."""

T = TypeVar("T", TenantSettings, TenantKeySettings)


class Names:
    """The names of one scope."""

    def __init__(self, scope: str) -> None:
        start = f"kvgate:{scope}"
        self.keys, self.tenants = f"{start}:keys", f"{start}:tenants"
        self.key, self.tenant = f"{start}:key:", f"{start}:tenant:"
        self.version, self.changed = f"{start}:tenants-version", f"{start}:tenants-changed"


class Changed(msgspec.Struct, frozen=True):
    """A change. ``keys``: SHA-256 of keys that are new, other or gone. ``tenants``: names."""

    version: int
    keys: tuple[str, ...] = ()
    tenants: tuple[str, ...] = ()


def connect(settings: ValkeySettings) -> Any:
    """A client of the server, not connected yet, for use in one task at a time. It tries nothing twice: its caller
    does. Raises ConfigError if it is not installed.

    Commands run in ``limited``. With a timeout of its own, the client would wait with ``asyncio.wait_for``, which
    before Python 3.12 may lose the cancellation of its task.
    """
    try:
        from redis.asyncio import Redis
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff
    except ImportError as error:
        raise ConfigError("it needs a package that is not installed: pip install 'kvgate[valkey]'") from error
    return Redis.from_url(
        settings.url,
        protocol=2,
        decode_responses=True,
        encoding_errors="replace",
        socket_timeout=None,
        socket_connect_timeout=CONNECTING,
        retry=Retry(NoBackoff(), 0),
        client_name="kvgate",
    )


def limited() -> asyncio.Timeout:
    """For the commands of one step. Raises TimeoutError."""
    return asyncio.timeout(TIMEOUT)


def failures() -> tuple[type[Exception], ...]:
    """What a client may raise while the server is away, or does not do as it is told."""
    from redis.exceptions import RedisError

    return RedisError, OSError, TimeoutError


def to_hash(settings: TenantSettings | TenantKeySettings) -> dict[str, str]:
    values = plain(settings)
    return {name: value if name in WORDS else msgspec.json.encode(value).decode() for name, value in values.items()}


def from_hash(kind: type[T], values: Mapping[str, str]) -> T:
    """Raises ValueError, whose text names the culprit."""
    decoded = {}
    for name, value in values.items():
        try:
            decoded[name] = value if name in WORDS else msgspec.json.decode(value)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    made: T = msgspec.convert(decoded, kind)
    return made
