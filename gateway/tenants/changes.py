"""Changes to tenants and keys: pure, whatever keeps them. Who keeps them applies the result in one step."""

from __future__ import annotations

import dataclasses
import hashlib
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from gateway.errors import ClientError, NotFound
from gateway.tenants.settings import DEFAULT, TenantKeySettings, TenantSettings, TenantsFileSettings

PREFIX = "kvg-"
"""What keys begin with: a scanner for secrets in code then finds them."""

KEY_BYTES = 32
"""Random bytes of a key: as many as its SHA-256 has."""

KEEP = 86400.0
"""Seconds for which the old key stays valid when it is replaced: a day to give the new one to all its users."""

_SPAN = re.compile(r"([1-9][0-9]{0,5})([smhdw])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


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
    if (span := _SPAN.fullmatch(text)) is None:
        return text
    return _iso(now + timedelta(**{_UNITS[span[2]]: int(span[1])}).total_seconds())


def _iso(when: float) -> str:
    return datetime.fromtimestamp(int(when), UTC).isoformat().replace("+00:00", "Z")


def add(key: TenantKeySettings, *, create_tenant: bool = False) -> Decide:
    """A new key. ``create_tenant``: where its tenant is not there, it is made, with the defaults."""

    def decide(content: TenantsFileSettings) -> Change:
        if any(one.id == key.id for one in content.keys):
            raise ClientError(f"There is a key {key.id!r} already: choose another id, or rotate it.", param="id")
        if key.tenant == DEFAULT or any(one.name == key.tenant for one in content.tenants):
            return Change(keys=(key,))
        if not create_tenant:
            raise ClientError(
                f"There is no tenant {key.tenant!r}: set it up first, or ask for it to be created.", param="tenant"
            )
        return Change(tenants=(TenantSettings(key.tenant),), keys=(key,))

    return decide


def revoke(key_id: str) -> Decide:
    """All keys of that id go."""
    return lambda content: Change(gone=tuple(one.sha256 for one in of_id(content, key_id)))


def rotate(key_id: str, sha256: str, *, now: float, keep: float = KEEP) -> Decide:
    """A new key with the id, tenant, models, limits and end of the one that ends last. The old ones end ``keep``
    seconds after ``now`` (since the epoch), where they do not end before."""

    def decide(content: TenantsFileSettings) -> Change:
        old = of_id(content, key_id)
        until = now + keep
        ending = [dataclasses.replace(one, expires=_iso(until)) for one in old if one.ends > until]
        last = max(old, key=lambda one: one.ends)
        return Change(keys=(*ending, dataclasses.replace(last, sha256=sha256)))

    return decide


def put_tenant(tenant: TenantSettings) -> Decide:
    """A new tenant, or new settings of one."""
    return lambda content: Change(tenants=(tenant,))


def of_id(content: TenantsFileSettings, key_id: str) -> Sequence[TenantKeySettings]:
    """The keys of that id, at least one. Raises NotFound."""
    found = [one for one in content.keys if one.id == key_id]
    if not found:
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
