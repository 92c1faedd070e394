"""The objects of a simulated API server, the version of each, and what has changed: as far back as it is remembered."""

from __future__ import annotations

import asyncio
import copy
import uuid
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeAlias

Object: TypeAlias = dict[str, Any]

HISTORY = 1000
"""Changes that are remembered: a real server's are those of the last five minutes."""


class Refused(Exception):
    """A request that a real server refuses too: ``code`` is an HTTP status, ``reason`` a word of the API."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reason = code, reason


@dataclass(frozen=True, slots=True)
class Key:
    """``resource``: with its group and version, as in a path: ``api/v1/pods``."""

    resource: str
    namespace: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class Change:
    """``before``: None if it was created. ``after``: None if it was deleted; ``version`` is of the change."""

    version: int
    key: Key
    before: Object | None
    after: Object | None


class Store:
    """Objects are never changed in place: who has one has it as it was."""

    def __init__(self, history: int = HISTORY) -> None:
        self.objects: dict[Key, Object] = {}
        self.version = 1000
        self.changes: deque[Change] = deque(maxlen=history)
        self._changed = asyncio.Event()

    async def wait(self) -> None:
        """Until the next change."""
        await self._changed.wait()

    def of(self, resource: str, namespace: str) -> list[Object]:
        """Sorted by name, as a real server does."""
        found = [key for key in self.objects if key.resource == resource and key.namespace == namespace]
        return [self.objects[key] for key in sorted(found, key=lambda key: key.name)]

    def since(self, version: int) -> list[Change] | None:
        """What has changed after ``version``; None: that is forgotten."""
        oldest = self.changes[0].version if self.changes else self.version + 1
        if version < self.version and version < oldest - 1:
            return None
        return [change for change in self.changes if change.version > version]

    def compact(self) -> None:
        """Forget all history."""
        self.changes.clear()

    def create(self, key: Key, made: Object) -> Object:
        if key in self.objects:
            raise Refused(409, "AlreadyExists", f'{key.resource} "{key.name}" already exists')
        new = copy.deepcopy(made)
        meta = new.setdefault("metadata", {})
        meta |= {"name": key.name, "namespace": key.namespace, "uid": str(uuid.uuid4()), "creationTimestamp": _now()}
        return self._enter(key, new)

    def change(self, key: Key, new: Object) -> Object:
        """Replace it. Without finalizers one that is being deleted is gone."""
        new = copy.deepcopy(new)
        meta, old = new["metadata"], self.get(key)["metadata"]
        for name in ("uid", "creationTimestamp", "deletionTimestamp"):
            meta.pop(name, None)
            if name in old:
                meta[name] = old[name]
        if "deletionTimestamp" in meta and not meta.get("finalizers"):
            return self._enter(key, new, gone=True)
        return self._enter(key, new)

    def delete(self, key: Key) -> Object:
        """One with finalizers stays, marked, until it has none."""
        old = copy.deepcopy(self.get(key))
        if old["metadata"].get("finalizers"):
            old["metadata"].setdefault("deletionTimestamp", _now())
            return self._enter(key, old)
        return self._enter(key, old, gone=True)

    def get(self, key: Key) -> Object:
        if (found := self.objects.get(key)) is None:
            raise Refused(404, "NotFound", f'{key.resource} "{key.name}" not found')
        return found

    def _enter(self, key: Key, new: Object, *, gone: bool = False) -> Object:
        self.version += 1
        new["metadata"]["resourceVersion"] = str(self.version)
        before = self.objects.get(key)
        if gone:
            del self.objects[key]
        else:
            self.objects[key] = new
        # A deleted object is told as it was last, under the version of its deletion.
        self.changes.append(Change(self.version, key, new if gone else before, None if gone else new))
        self._changed.set()
        self._changed = asyncio.Event()
        return new


def merged(old: Any, patch: Any) -> Any:
    """A JSON merge patch (RFC 7396)."""
    if not isinstance(patch, Mapping):
        return patch
    new = dict(old) if isinstance(old, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            new.pop(key, None)
        else:
            new[key] = merged(new.get(key), value)
    return new


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
