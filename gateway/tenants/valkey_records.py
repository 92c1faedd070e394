"""How tenants and keys stand in Valkey: the names, the hashes, and the message about a change.

| name (``S``: the scope) | what |
|---|---|
| ``kvgate:S:key:SHA256``, ``kvgate:S:tenant:NAME`` | a hash: what is no default; JSON, but for words |
| ``kvgate:S:keys``, ``kvgate:S:tenants`` | the sets of all SHA256 and all NAME |
| ``kvgate:S:tenants-version`` | the number of changes so far |
| channel ``kvgate:S:tenants-changed`` | JSON of each change: its version, and whose hashes it changed |
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import msgspec

from gateway.tenants.changes import plain
from gateway.tenants.settings import TenantKeySettings, TenantSettings

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
