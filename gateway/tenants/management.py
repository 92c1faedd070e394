"""Managing tenants and keys, for operators: the verbs of the admin API and of ``kvgate keys``, with plain values."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from gateway.errors import ClientError, NotFound
from gateway.framework import Clock
from gateway.tenants.changes import KEEP, NOTHING, Store, add, moment, new_key, plain, put_tenant, revoke, rotate, span
from gateway.tenants.limit_settings import LimitSettings
from gateway.tenants.settings import TenantKeySettings, TenantSettings, TenantsFileSettings

PLUGINS_YAML = "plugins.yaml"

SHOWN = 12
"""Hexadecimal digits of a key's SHA-256 that are shown: enough to tell keys apart."""

MAX_KEEP = 90 * 86400.0
"""The longest time, in seconds, for which a replaced key may stay valid: longer is no replacement."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class NewKey:
    """The key that is asked for. ``id``: None: the tenant's name and a random end. ``expires``: as in the settings, or
    a span such as ``30d``. ``create_tenant``: where its tenant is not there, make it, with the defaults."""

    tenant: str
    id: str | None = None
    expires: str | None = None
    models: tuple[str, ...] | None = None
    limits: LimitSettings = field(default_factory=LimitSettings)
    create_tenant: bool = False


class Management:
    """``store``: where tenants and keys are kept; None: in plugins.yaml only, and nothing can be changed. ``own``: what
    that has. All methods raise StoreFailed, and ClientError for what cannot be done."""

    def __init__(self, store: Store | None, own: TenantsFileSettings, clock: Clock) -> None:
        self._store = store
        self._own = own
        self._clock = clock

    async def keys(self) -> list[dict[str, Any]]:
        """All keys, those that have expired included, without what would let anybody in."""
        return [self._shown(one, source) for source, content in await self._contents() for one in content.keys]

    async def tenants(self) -> list[dict[str, Any]]:
        """All tenants."""
        return [_tenant(one, source) for source, content in await self._contents() for one in content.tenants]

    async def tenant(self, name: str) -> dict[str, Any]:
        """One, with its keys. Raises NotFound."""
        for source, content in await self._contents():
            for one in content.tenants:
                if one.name == name:
                    keys = [key for key in await self.keys() if key["tenant"] == name]
                    return {**_tenant(one, source), "keys": keys}
        raise NotFound(f"There is no tenant {name[:64]!r}.", param="name")

    async def add(self, wanted: NewKey) -> dict[str, Any]:
        """Make a key: the only time that it is shown, under ``key``."""
        store, (text, sha256) = self._writable(), new_key()
        key_id = wanted.id or f"{wanted.tenant}-{secrets.token_hex(3)}"
        expires = None if wanted.expires is None else moment(wanted.expires, self._clock.wall())
        key = _settings(lambda: TenantKeySettings(key_id, sha256, wanted.tenant, expires, wanted.models, wanted.limits))
        if wanted.create_tenant:
            _settings(lambda: TenantSettings(wanted.tenant))
        if key.ends <= self._clock.wall():
            raise ClientError("expires is in the past", param="expires")
        await store.change(add(key, self._own, create_tenant=wanted.create_tenant))
        return {**self._shown(key, store.name), "key": text}

    async def revoke(self, key_id: str) -> dict[str, Any]:
        """No request gets in with a key of this id any more."""
        await self._writable().change(revoke(key_id, self._own))
        return {"id": key_id, "revoked": True}

    async def rotate(self, key_id: str, keep: str | None = None) -> dict[str, Any]:
        """Make another key of this id, shown under ``key``. The old one stays valid for the span ``keep``."""
        store, (text, sha256) = self._writable(), new_key()
        seconds = KEEP if keep is None else 0.0 if keep == "0" else span(keep)
        if seconds is None or seconds > MAX_KEEP:
            raise ClientError("keep must be a span of at most 90d, such as 12h or 2d, or 0", param="keep")
        after = await store.change(rotate(key_id, sha256, self._own, now=self._clock.wall(), keep=seconds))
        [made] = [one for one in after.keys if one.sha256 == sha256]
        return {**self._shown(made, store.name), "key": text}

    async def put_tenant(self, settings: TenantSettings) -> dict[str, Any]:
        """Make a tenant, or replace its settings."""
        store = self._writable()
        await store.change(put_tenant(settings, self._own))
        return _tenant(settings, store.name)

    def _writable(self) -> Store:
        if self._store is None:
            raise ClientError(
                "Tenants and keys stand in plugins.yaml, which nothing writes: set tenants.file or tenants.valkey."
            )
        return self._store

    async def _contents(self) -> list[tuple[str, TenantsFileSettings]]:
        kept = NOTHING if self._store is None else await self._store.read()
        return [(PLUGINS_YAML, self._own), ("" if self._store is None else self._store.name, kept)]

    def _shown(self, key: TenantKeySettings, source: str) -> dict[str, Any]:
        return {
            **plain(key),
            "sha256": key.sha256[:SHOWN],
            "expired": key.ends <= self._clock.wall(),
            "source": source,
        }


def _tenant(settings: TenantSettings, source: str) -> dict[str, Any]:
    return {**plain(settings), "source": source}


def _settings(make: Callable[[], T]) -> T:
    """What ``make`` makes of what was asked for. Raises ClientError."""
    try:
        return make()
    except ValueError as error:
        subject = str(error).partition(" ")[0]
        raise ClientError(str(error), param="tenant" if subject == "name" else subject) from None
