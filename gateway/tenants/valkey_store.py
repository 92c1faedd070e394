"""Writes tenants and keys into Valkey: all of a change in one transaction, and announced with it."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.tenants.changes import Change, Decide, StoreFailed
from gateway.tenants.settings import TenantKeySettings, TenantSettings, TenantsFileSettings, ValkeySettings
from gateway.tenants.valkey_records import Changed, Names, T, from_hash, to_hash
from gateway.valkey.client import connect, failures, limited

ATTEMPTS = 5
"""Changes that others may make at the same time before this one is given up."""


class ValkeyStore:
    """A server: a ``Store``. Each call connects anew: changes are rare. Raises ConfigError if the client's package is
    not installed."""

    def __init__(self, settings: ValkeySettings) -> None:
        self.name = "Valkey"
        self._settings = settings
        self._names = Names(settings.scope)
        connect(settings.url)

    async def read(self) -> TenantsFileSettings:
        client = connect(self._settings.url)
        try:
            async with limited():
                return await self._content(client)
        except failures() as error:
            raise self._failed(error) from error
        finally:
            await client.aclose()

    async def change(self, decide: Decide) -> TenantsFileSettings:
        from redis.exceptions import WatchError

        client = connect(self._settings.url)
        try:
            for _ in range(ATTEMPTS):
                async with limited(), client.pipeline(transaction=True) as together:
                    await together.watch(self._names.version)
                    stored = await together.get(self._names.version)
                    content = await self._content(client)
                    change = decide(content)
                    together.multi()
                    self._write(together, change, version=int(stored or 0) + 1)
                    try:
                        await together.execute()
                    except WatchError:
                        continue
                    return change.applied(content)
        except failures() as error:
            raise self._failed(error) from error
        finally:
            await client.aclose()
        raise StoreFailed("Others change tenants and keys at the same time: try again.")

    async def _content(self, client: Any) -> TenantsFileSettings:
        tenants = await self._all(client, TenantSettings, self._names.tenants, self._names.tenant)
        keys = await self._all(client, TenantKeySettings, self._names.keys, self._names.key)
        return TenantsFileSettings(tuple(tenants), tuple(keys))

    async def _all(self, client: Any, kind: type[T], everything: str, prefix: str) -> list[T]:
        async with client.pipeline(transaction=False) as together:
            for name in sorted(await client.smembers(everything)):
                together.hgetall(prefix + name)
            hashes = await together.execute()
        try:
            return [from_hash(kind, values) for values in hashes if values]
        except ValueError as error:
            raise StoreFailed(f"Valkey has an entry under {prefix} that cannot be read: {error}") from error

    def _write(self, together: Any, change: Change, *, version: int) -> None:
        names = self._names
        for tenant in change.tenants:
            together.delete(names.tenant + tenant.name)
            together.hset(names.tenant + tenant.name, mapping=to_hash(tenant))
            together.sadd(names.tenants, tenant.name)
        for key in change.keys:
            together.delete(names.key + key.sha256)
            together.hset(names.key + key.sha256, mapping=to_hash(key))
            together.sadd(names.keys, key.sha256)
        for gone in change.gone:
            together.delete(names.key + gone)
            together.srem(names.keys, gone)
        changed = Changed(
            version, (*(key.sha256 for key in change.keys), *change.gone), tuple(one.name for one in change.tenants)
        )
        together.incr(names.version)
        together.publish(names.changed, msgspec.json.encode(changed).decode())

    def _failed(self, error: Exception) -> StoreFailed:
        return StoreFailed(f"Valkey cannot be reached: {str(error) or type(error).__name__}")
