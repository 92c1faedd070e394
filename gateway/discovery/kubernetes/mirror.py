"""The objects of a collection, as they are on the server: list, watch, and list again where the watch cannot go on.

Rules:

- what a list lacks is gone, whatever the watch has told or lost;
- versions are opaque: they are given back as they came, never compared;
- a watch that ends goes on from the last version, of an event or of a bookmark; where the server has forgotten that
  (410, as a status or as an event), there is a new list;
- after a failure, and after a watch that was short, there is a pause that doubles, with chance in it: many gateways
  ask the same server.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Generic, NoReturn, Protocol, TypeVar

import msgspec

from gateway.discovery.kubernetes.api import Api, ApiError, Connection, Cut, Gone, Status
from gateway.framework import Clock

log = logging.getLogger("kvgate.discovery")

PAGE = 500
"""Objects in a page of a list: what the client library of Kubernetes itself asks for."""

WATCH_SECONDS = (300, 600)
"""How long a watch may last: the server ends it then, and spreads its clients anew by that."""

FIRST_PAUSE, LONGEST_PAUSE = 0.2, 30.0
"""Seconds: the first pause hides a server's restart; the longest one is how late we notice that it is back."""

STEADY = 1.0
"""Seconds of a watch after which the next pause is the first one again: a server that cuts each watch off at once is
not asked all the time, while one that only restarts often is heard again soon."""


class Meta(msgspec.Struct, rename="camel"):
    """Of ``metadata`` what is used here."""

    name: str
    resource_version: str = ""


class _Object(msgspec.Struct):
    metadata: Meta


class _ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    next: str = msgspec.field(default="", name="continue")


class _List(msgspec.Struct):
    metadata: _ListMeta
    items: list[msgspec.Raw] | None = None


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Position(msgspec.Struct):
    """A bookmark has a version, and no name."""

    metadata: _ListMeta


class View(Protocol):
    """What is kept of an object: immutable, and equal where nothing that matters has changed."""

    @property
    def name(self) -> str: ...

    @property
    def uid(self) -> str: ...


V = TypeVar("V", bound=View)


@dataclass(frozen=True, slots=True)
class Collection(Generic[V]):
    """``path``: with ``{namespace}`` where that goes. ``view``: makes what is kept of an object's JSON; raises
    msgspec.MsgspecError. ``labels``, ``fields``: selectors, in Kubernetes' own syntax."""

    path: str
    view: Callable[[msgspec.Raw], V]
    labels: str = ""
    fields: str = ""

    @property
    def query(self) -> dict[str, str]:
        given = {"labelSelector": self.labels, "fieldSelector": self.fields}
        return {key: value for key, value in given.items() if value}


class Mirror(Generic[V]):
    """``objects``: by name, what the server had when it was last heard. ``synced``: a list has come."""

    def __init__(
        self,
        api: Api,
        collection: Collection[V],
        changed: Callable[[], None],
        lost: Callable[[str], None],
        clock: Clock,
        chance: random.Random,
    ) -> None:
        """``changed``: called after each list, when events have changed something, and when the server is heard again
        after ``lost``, which says why it cannot be read."""
        self.objects: Mapping[str, V] = {}
        self.synced = False
        self._api, self._collection = api, collection
        self._changed, self._tell_lost = changed, lost
        self._clock, self._chance = clock, chance
        self._version = ""
        self._is_lost = False
        self._pause = FIRST_PAUSE
        self._accepted = math.inf
        """When the server began the last watch; inf: it has not, since the last pause."""

    async def run(self) -> NoReturn:
        """For ever; it ends by being cancelled."""
        while True:
            wait, self._accepted = 0.0, math.inf
            try:
                async with self._api.connect() as connection:
                    if not self._version:
                        await self._list(connection)
                    await self._watch(connection)
            except Gone:
                self._version = ""
            except Cut as error:
                log.debug("%s: %s", self._collection.path, error)
            except ApiError as error:
                wait = error.retry_after
                self._lose(str(error))
            except Exception as error:  # what a server sends must not end the watching of it
                log.exception("watching %s failed", self._collection.path)
                self._version = ""
                self._lose(f"{type(error).__name__}: {error}")
            if self._clock.monotonic() - self._accepted >= STEADY:
                self._pause = FIRST_PAUSE
            await asyncio.sleep(max(wait, self._pause * self._chance.uniform(0.5, 1.0)))
            self._pause = min(LONGEST_PAUSE, 2 * self._pause)

    async def _list(self, connection: Connection) -> None:
        query = {**self._collection.query, "limit": str(PAGE)}
        objects: dict[str, V] = {}
        while True:
            data = await connection.page(self._collection.path, query)
            try:
                page = msgspec.json.decode(data, type=_List)
                objects.update((view.name, view) for view in map(self._collection.view, page.items or ()))
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise ApiError(f"the list of {self._collection.path} cannot be read: {error}") from error
            if not page.metadata.next:
                break
            query["continue"] = page.metadata.next
        self.objects, self.synced, self._is_lost = objects, True, False
        self._version = page.metadata.resource_version
        self._changed()

    async def _watch(self, connection: Connection) -> None:
        query = {
            **self._collection.query,
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(self._chance.randint(*WATCH_SECONDS)),
        }
        async with aclosing(connection.lines(self._collection.path, query)) as watch:
            async for lines in watch:
                self._accepted = min(self._accepted, self._clock.monotonic())
                before, self._is_lost = self._is_lost, False
                objects = dict(self.objects)
                try:
                    for line in lines:
                        self._hear(line, objects)
                finally:  # also of what came before an error
                    changed, self.objects = objects != self.objects, objects
                    if changed or before:
                        self._changed()

    def _hear(self, line: bytes, objects: dict[str, V]) -> None:
        """Enter an event. Raises ApiError."""
        try:
            event = msgspec.json.decode(line, type=_Event)
            if event.type == "ERROR":
                status = msgspec.json.decode(event.object, type=Status)
                problem = Gone if status.code == 410 else ApiError
                raise problem(f"the watch ended with an error: {status.code} {status.message[:300]}")
            version = msgspec.json.decode(event.object, type=_Position).metadata.resource_version
            if event.type in ("ADDED", "MODIFIED"):
                view = self._collection.view(event.object)
                objects[view.name] = view
            elif event.type == "DELETED":
                view = self._collection.view(event.object)
                if (known := objects.get(view.name)) is not None and known.uid == view.uid:
                    del objects[view.name]
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            self._version = ""  # what the line said is not known
            raise ApiError(f"an event of {self._collection.path} cannot be read: {error}") from error
        self._version = version or self._version

    def _lose(self, why: str) -> None:
        self._is_lost = True
        self._tell_lost(why)
