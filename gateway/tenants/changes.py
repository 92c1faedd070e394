"""Changes to tenants and keys: pure, whatever keeps them. Who keeps them applies the result in one step.

``own``, in what follows: the tenants and keys in plugins.yaml, which nothing writes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from gateway.errors import ClientError, GatewayError, NotFound
from gateway.tenants.settings import DEFAULT, TenantKeySettings, TenantSettings, TenantsFileSettings

PREFIX = "kvg-"
"""What keys begin with: a scanner for secrets in code then finds them."""

KEY_BYTES = 32
"""Random bytes of a key: as many as its SHA-256 has."""

KEEP = 86400.0
"""Seconds for which the old key stays valid when it is replaced: a day to give the new one to all its users."""

_SPAN = re.compile(r"([1-9][0-9]{0,5})([smhdw])")
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


@dataclass(frozen=True, slots=True)
class Change:
    """What is to be written. ``tenants``: new, or instead of those of the same name. ``keys``: new, or instead of those
    of the same SHA-256. ``gone``: the SHA-256 of keys that go."""

    tenants: tuple[TenantSettings, ...] = ()
    keys: tuple[TenantKeySettings, ...] = ()
    gone: tuple[str, ...] = ()

    def applied(self, content: TenantsFileSettings) -> TenantsFileSettings:
        """``content`` with the change in it, in the order that there was."""
        tenants = {one.name: one for one in (*content.tenants, *self.tenants)}
        keys = {one.sha256: one for one in (*content.keys, *self.keys) if one.sha256 not in self.gone}
        return dataclasses.replace(content, tenants=tuple(tenants.values()), keys=tuple(keys.values()))


NOTHING = TenantsFileSettings()


class StoreFailed(GatewayError):
    """What keeps tenants and keys could not be read or written. No client sees it."""

    status = 503
    type = "service_unavailable"


class Decide(Protocol):
    """Decides what to change, by what there is: see ``Store.change``. Raises ClientError."""

    def __call__(self, content: TenantsFileSettings, /) -> Change: ...


class Store(Protocol):
    """What keeps tenants and keys. ``name``: of it, in messages."""

    @property
    def name(self) -> str: ...

    async def read(self) -> TenantsFileSettings:
        """What it has now. Raises StoreFailed."""
        ...

    async def change(self, decide: Decide) -> TenantsFileSettings:
        """Write what ``decide`` returns, all of it or nothing; returns what there is then. Raises StoreFailed, and what
        ``decide`` raises."""
        ...


def new_key() -> tuple[str, str]:
    """A new key, and its SHA-256 in hexadecimal."""
    key = PREFIX + secrets.token_urlsafe(KEY_BYTES)
    return key, hashlib.sha256(key.encode()).hexdigest()


def moment(text: str, now: float) -> str:
    """When something ends, in ISO 8601: ``text`` itself, or, for a span such as ``30d`` or ``12h``, so long after
    ``now`` (seconds since the epoch)."""
    seconds = span(text)
    return text if seconds is None else _iso(now + seconds)


def span(text: str) -> float | None:
    """Seconds of ``30d``, ``12h``, ``5m``, ``90s`` or ``2w``; None: it is none of these."""
    found = _SPAN.fullmatch(text)
    return None if found is None else int(found[1]) * _UNITS[found[2]]


def _iso(when: float) -> str:
    return datetime.fromtimestamp(int(when), UTC).isoformat().replace("+00:00", "Z")


def add(key: TenantKeySettings, own: TenantsFileSettings = NOTHING, *, create_tenant: bool = False) -> Decide:
    """A new key. ``create_tenant``: where its tenant is not there, it is made, with the defaults."""

    def decide(content: TenantsFileSettings) -> Change:
        if any(one.id == key.id for one in (*content.keys, *own.keys)):
            raise ClientError(f"There is a key {key.id!r} already: choose another id, or rotate it.", param="id")
        if key.tenant == DEFAULT or any(one.name == key.tenant for one in (*content.tenants, *own.tenants)):
            return Change(keys=(key,))
        if not create_tenant:
            raise ClientError(
                f"There is no tenant {key.tenant!r}: set it up first, or make it with the key (create_tenant).",
                param="tenant",
            )
        return Change(tenants=(TenantSettings(key.tenant),), keys=(key,))

    return decide


def revoke(key_id: str, own: TenantsFileSettings = NOTHING) -> Decide:
    """All keys of that id go."""
    return lambda content: Change(gone=tuple(one.sha256 for one in _of_id(content, key_id, own)))


def rotate(key_id: str, sha256: str, own: TenantsFileSettings = NOTHING, *, now: float, keep: float = KEEP) -> Decide:
    """A new key with the id, tenant, models, limits and end of the one that ends last. The old ones end ``keep``
    seconds after ``now`` (since the epoch), where they do not end before."""

    def decide(content: TenantsFileSettings) -> Change:
        old = _of_id(content, key_id, own)
        until = now + keep
        ending = [dataclasses.replace(one, expires=_iso(until)) for one in old if one.ends > until]
        last = max(old, key=lambda one: one.ends)
        return Change(keys=(*ending, dataclasses.replace(last, sha256=sha256)))

    return decide


def put_tenant(tenant: TenantSettings, own: TenantsFileSettings = NOTHING) -> Decide:
    """A new tenant, or new settings of one."""

    def decide(content: TenantsFileSettings) -> Change:
        if any(one.name == tenant.name for one in own.tenants):
            raise ClientError(f"The tenant {tenant.name!r} stands in plugins.yaml: change it there.", param="name")
        return Change(tenants=(tenant,))

    return decide


def _of_id(content: TenantsFileSettings, key_id: str, own: TenantsFileSettings) -> Sequence[TenantKeySettings]:
    """The keys of that id, at least one. Raises NotFound."""
    found = [one for one in content.keys if one.id == key_id]
    if not found:
        if any(one.id == key_id for one in own.keys):
            raise ClientError(f"The key {key_id!r} stands in plugins.yaml: change it there.", param="id")
        raise NotFound(f"There is no key {key_id[:64]!r}.", param="id")
    return found


def plain(settings: Any) -> dict[str, Any]:
    """``settings`` of a tenant or a key as plain values, without what has its default."""
    shown: dict[str, Any] = {}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        if value != default:
            shown[field.name] = _plain(value)
    return shown


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return plain(value)
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, tuple) else value
