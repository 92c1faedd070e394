"""Keeps the directory up to date with where tenants and keys are kept, and from one configuration to the next."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Protocol

from gateway.core.tasks import TaskSet
from gateway.framework import Clock
from gateway.tenants.directory import NOTHING, Directory, Roster
from gateway.tenants.settings import BANDS, TenantsFileSettings, TenantsSettings


class Source(Protocol):
    """Where tenants and keys are kept. ``kind``: a word for metrics. ``content``: the last that is known.
    ``complete``: false until it was read once. ``problem``: why it cannot be read now; empty: it can."""

    @property
    def kind(self) -> str: ...

    @property
    def content(self) -> TenantsFileSettings: ...

    @property
    def complete(self) -> bool: ...

    @property
    def problem(self) -> str: ...

    async def follow(self, changed: Callable[[], None]) -> None:
        """Keep ``content`` up to date until this is cancelled. ``changed``: called after each change."""
        ...

    async def look(self, changed: Callable[[], None]) -> None:
        """Bring ``content`` up to date now, as far as that can be done at once."""
        ...


class Sources:
    """``directory``: of whoever may come in, as of now. ``client_keys``: digests of keys without a tenant. ``source``:
    None: all is in the settings."""

    def __init__(
        self, clock: Clock, settings: TenantsSettings, client_keys: Iterable[bytes], source: Source | None
    ) -> None:
        self._settings = settings
        self._client_keys = frozenset(client_keys)
        self._objectives: Mapping[str, int] = {}
        self.source = source
        self._tasks = TaskSet()
        self._following: asyncio.Task[None] | None = None
        self._started = False
        self.directory = Directory(self._roster(), clock)

    def start(self) -> None:
        """Follow the source."""
        self._started = True
        self._follow()

    def adopt(self, settings: TenantsSettings, client_keys: Iterable[bytes], source: Source | None) -> None:
        """Use these from the next request on. Header tenants that are in use stay known."""
        self._settings, self._client_keys = settings, frozenset(client_keys)
        if source is not self.source:
            if self._following is not None:
                self._following.cancel()
            self.source, self._following = source, None
            if self._started:
                self._follow()
        self.renew()

    async def look(self) -> None:
        """What has just been written to the source is in force when this returns, where the source allows it."""
        if self.source is not None:
            await self.source.look(self.renew)

    def prioritize(self, objectives: Mapping[str, int]) -> None:
        """These were found: bands by the names of objectives, of which the nearest ones count that there are. Those of
        the settings count before them."""
        low, high = BANDS
        self._objectives = {name: min(max(band, low), high) for name, band in objectives.items()}
        self.renew()

    def renew(self) -> None:
        """The source has changed."""
        self.directory.use(self._roster())

    def state(self) -> dict[str, bool]:
        """Whether the source can be read, by its kind (``file``, ``valkey``); empty: there is none."""
        return {} if self.source is None else {self.source.kind: self.source.complete and not self.source.problem}

    async def close(self) -> None:
        await self._tasks.close()

    def _follow(self) -> None:
        if self.source is not None:
            self._following = self._tasks.start(self.source.follow(self.renew), name="follow tenants and keys")

    def _roster(self) -> Roster:
        source = self.source
        found, complete = (NOTHING, True) if source is None else (source.content, source.complete)
        settings = self._settings
        if self._objectives:
            settings = replace(settings, objectives={**self._objectives, **settings.objectives})
        return Roster.make(settings, self._client_keys, found, complete=complete)
