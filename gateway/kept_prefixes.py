"""Keeps in a file which prefixes were sent to engines without KV events, so that their sessions find them after a
restart.

Only of models none of whose engines reports what it holds: an engine that does replays its events, which is newer and
whole. The file is some bytes for each block that such an engine has room for, far more than all else that is kept; so
it is a file of its own, is written seldom, and is not needed: what is wrong with it counts as no file.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from math import inf
from pathlib import Path

import msgspec

from gateway.core.files import replace_file
from gateway.framework import Clock
from gateway.kvcache.index.cache_index import CacheIndex
from gateway.kvcache.index.kept_estimates import KeptEstimates

log = logging.getLogger("kvgate.state")

INTERVAL = 60.0
"""Seconds between two writes: what is learned in a minute is a small part of a cache."""

VERSION = 1
"""Of the file's form, and of what a block's key is made of."""

MAX_BYTES = 256 * 1024 * 1024
"""Of the file, written and read: 1,000 engines with room for 400,000 tokens each, of 16 a block."""


class _Kept(msgspec.Struct, frozen=True):
    """``written``: seconds since the epoch. ``models``: by name."""

    version: int
    written: float
    models: dict[str, KeptEstimates]


class PrefixFile:
    """The prefixes of ``indexes``, by model, in the file ``path``. It is not written before ``recall``."""

    def __init__(self, path: str, indexes: Callable[[], Mapping[str, CacheIndex]], clock: Clock) -> None:
        self._path = Path(path)
        self._indexes = indexes
        self._clock = clock
        self._next = inf
        self._there = False

    def recall(self, max_age: float) -> None:
        """Go on from a file that is at most ``max_age`` seconds old; once engines are known, and before any request is
        placed."""
        self._next = self._clock.monotonic() + INTERVAL
        try:
            self._there = self._path.exists()
            if not self._there:
                return
            if self._path.stat().st_size > MAX_BYTES:
                raise ValueError("it is too large")
            kept = msgspec.msgpack.decode(self._path.read_bytes(), type=_Kept)
        except (OSError, ValueError) as error:  # msgspec's are such, too
            log.warning("state: %s is not used: %s", self._path, error)
            return
        age = self._clock.wall() - kept.written
        if kept.version != VERSION or not -max_age <= age <= max_age:
            log.info("state: %s is not used: of version %d, written %.0f s ago", self._path, kept.version, age)
            return
        indexes = self._indexes()
        known = indexes.keys() & kept.models.keys()
        if count := sum(indexes[name].recall_estimates(kept.models[name]) for name in known):
            log.info("state: goes on from %s, %.0f s old: prefixes of %d endpoints", self._path, age, count)

    def data(self, *, at_last: bool) -> bytes | None:
        """What is to be written now; None: nothing. ``at_last``: before its time."""
        now = self._clock.monotonic()
        if self._next == inf or (now < self._next and not at_last):
            return None
        self._next = now + INTERVAL
        models = {name: kept for name, index in self._indexes().items() if (kept := index.keep_estimates()).endpoints}
        if not models and not self._there:
            return None
        data = msgspec.msgpack.encode(_Kept(VERSION, self._clock.wall(), models))
        return data if len(data) <= MAX_BYTES else None

    def write(self, data: bytes) -> None:
        """Blocking. Raises OSError."""
        replace_file(self._path, data)
        self._there = True
