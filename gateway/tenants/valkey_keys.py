"""Tenants and keys in Valkey: loaded into memory, and followed there. No request waits for the server.

A change is announced on a channel; what it names is read again. Announcements may be lost, so the number of changes is
compared every few seconds, and all is read again where it is not the expected one. While the server is away, what was
last known stays in force. A server that comes back without its data has lost it, and changes nothing either.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from gateway.tenants.settings import TenantKeySettings, TenantSettings, TenantsFileSettings, ValkeySettings
from gateway.tenants.valkey_records import Changed, Names, T, from_hash
from gateway.valkey.client import connect, failures, limited

log = logging.getLogger("kvgate.tenants")

LOOK = 5.0
"""Seconds without an announcement after which the number of changes is compared: one GET."""

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 10.0
"""Seconds until the server is tried again after a failure; each time twice as long, up to the second."""

AT_ONCE = 200
"""Hashes that are read in one go: they take the event loop about 4 ms."""

MOST = 100_000
"""Keys that are kept, 1 KB each. Further ones are not read, and the log says so."""

MOST_MESSAGES = 1000
"""Announcements that are taken together."""


class Lost(Exception):
    """The server has no tenants and keys any more."""


class ValkeySource:
    """The last known tenants and keys of a server. Raises ConfigError if the client's package is not installed."""

    kind = "valkey"

    def __init__(self, settings: ValkeySettings) -> None:
        self._settings = settings
        self._names = Names(settings.scope)
        connect(settings.url)
        self._away: tuple[type[Exception], ...] = (*failures(), Lost)
        self.content = TenantsFileSettings()
        self.complete = False
        self.problem = ""
        self._tenants: dict[str, TenantSettings] = {}
        self._keys: dict[str, TenantKeySettings] = {}
        self._version: int | None = None
        """The number of changes that are in ``content``; None: nothing was ever kept there, or nothing is known."""
        self._client: Any = None
        """While connected."""
        self._pause = FIRST_PAUSE
        self._one_at_a_time = asyncio.Lock()

    async def follow(self, changed: Callable[[], None]) -> None:
        """Follow the server for ever; whatever fails is tried again."""
        while True:
            try:
                await self._connected(changed)
            except self._away as error:
                self._failed(error)
            await asyncio.sleep(self._pause)
            self._pause = min(2 * self._pause, LONGEST_PAUSE)

    async def look(self, changed: Callable[[], None]) -> None:
        """Read all that has changed. What fails is left to ``follow``."""
        if (client := self._client) is not None:
            try:
                await self._compare(client, changed)
            except self._away as error:
                log.info("tenants and keys: %s", error)

    async def _connected(self, changed: Callable[[], None]) -> None:
        client = connect(self._settings.url)
        try:
            async with client.pubsub() as announced:
                async with self._one_at_a_time, limited():
                    await announced.subscribe(self._names.changed)
                    await self._load(client)
                self._client = client
                self._back(changed)
                while True:
                    message = await announced.get_message(ignore_subscribe_messages=True, timeout=LOOK)
                    if message is None:
                        await self._compare(client, changed)
                        continue
                    messages = [message]
                    while len(messages) < MOST_MESSAGES:
                        message = await announced.get_message(ignore_subscribe_messages=True, timeout=0.0)
                        if message is None:
                            break
                        messages.append(message)
                    await self._take([message["data"] for message in messages], client, changed)
        finally:
            self._client = None
            await client.aclose()

    def _back(self, changed: Callable[[], None]) -> None:
        self._pause = FIRST_PAUSE
        if self.problem or not self.complete:
            log.info("tenants and keys are read: %d tenants, %d keys", len(self._tenants), len(self._keys))
        self.problem, self.complete = "", True
        changed()

    def _failed(self, error: Exception) -> None:
        self._client = None
        why = str(error) or type(error).__name__
        if not self.problem:
            stay = "what was last known stays in force" if self.complete else "no key is valid until they are"
            log.error("tenants and keys cannot be read from Valkey: %s; %s; it is tried again", why, stay)
        self.problem = why

    async def _compare(self, client: Any, changed: Callable[[], None]) -> None:
        """Read all again where the number of changes is not the expected one."""
        async with self._one_at_a_time, limited():
            if await self._stored_version(client) != self._version:
                await self._load(client)
                changed()

    async def _take(self, announcements: Sequence[str], client: Any, changed: Callable[[], None]) -> None:
        """Read what the announcements name; all, if one is missing or no announcement."""
        async with self._one_at_a_time, limited():
            keys: set[str] = set()
            tenants: set[str] = set()
            version = self._version or 0
            for data in announcements:
                try:
                    news = msgspec.json.decode(data, type=Changed)
                except ValueError:
                    news = Changed(-1)
                if 0 <= news.version <= version:
                    continue
                if news.version != version + 1:
                    await self._load(client)
                    changed()
                    return
                version = news.version
                keys.update(news.keys)
                tenants.update(news.tenants)
            if version == (self._version or 0):
                return
            await self._renew(client, TenantSettings, self._names.tenant, tenants, self._tenants)
            await self._renew(client, TenantKeySettings, self._names.key, keys, self._keys)
            self._keep(version)
            changed()

    async def _load(self, client: Any) -> None:
        """Read all. Raises Lost."""
        names = self._names
        version = await self._stored_version(client)
        if version is None and self._version is not None:
            raise Lost("the server has lost its tenants and keys: restore its data, or add them again")
        tenants: dict[str, TenantSettings] = {}
        keys: dict[str, TenantKeySettings] = {}
        await self._renew(client, TenantSettings, names.tenant, await client.smembers(names.tenants), tenants)
        known = await client.smembers(names.keys)
        if len(known) > MOST:
            log.error("Valkey has %d keys, of which %d are used: a gateway keeps no more", len(known), MOST)
            known = sorted(known)[:MOST]
        await self._renew(client, TenantKeySettings, names.key, known, keys)
        self._tenants, self._keys = tenants, keys
        self._keep(version)

    async def _renew(self, client: Any, kind: type[T], prefix: str, which: Iterable[str], into: dict[str, T]) -> None:
        """Read the hashes of ``which`` and enter them; who has none any more goes. What cannot be read is left out."""
        left = sorted(which)
        while left:
            some, left = left[:AT_ONCE], left[AT_ONCE:]
            async with client.pipeline(transaction=False) as together:
                for name in some:
                    together.hgetall(prefix + name)
                hashes = await together.execute()
            for name, values in zip(some, hashes, strict=True):
                into.pop(name, None)
                if values:
                    try:
                        into[name] = from_hash(kind, values)
                    except ValueError as error:
                        log.error("%s%s in Valkey is left out: %s", prefix, name[:8], error)

    async def _stored_version(self, client: Any) -> int | None:
        stored = await client.get(self._names.version)
        return int(stored) if stored is not None and stored.isascii() and stored.isdigit() else None

    def _keep(self, version: int | None) -> None:
        self._version = version
        self.content = TenantsFileSettings(tuple(self._tenants.values()), tuple(self._keys.values()))
