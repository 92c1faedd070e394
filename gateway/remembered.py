"""Keeps in a file what is remembered of single requests, so that clients find their engine after a restart: which
prefixes were sent to engines without KV events, and what one worker tells another that has just started (which engine
keeps which response, and what plugins remember, such as sessions).

Of prefixes only those of models none of whose engines reports what it holds: an engine that does replays its events,
which is newer and whole. The file is some bytes for each block that such an engine has room for, far more than all else
that is kept; so it is a file of its own, is written seldom, and is not needed: what is wrong with it counts as no file.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
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
    """``written``: seconds since the epoch. ``models``: prefixes by a model's name. ``notes``: as workers tell them."""

    version: int
    written: float
    models: dict[str, KeptEstimates]
    notes: list[tuple[str, bytes]]


class RememberedFile:
    """What is remembered, in the file ``path``, which is not written before ``recall``. ``indexes``: by model.
    ``notes``: all that another process must hear; ``hear``: what is done with each there. It may raise MsgspecError."""

    def __init__(
        self,
        path: str,
        clock: Clock,
        *,
        indexes: Callable[[], Mapping[str, CacheIndex]],
        notes: Callable[[], Iterable[tuple[str, bytes]]] = tuple,
        hear: Callable[[str, bytes], None] = lambda name, note: None,
    ) -> None:
        self._path = Path(path)
        self._clock = clock
        self._indexes = indexes
        self._notes = notes
        self._hear = hear
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
        for name, note in kept.notes:
            try:
                self._hear(name, note)
            except msgspec.MsgspecError as error:
                log.warning("state: %s: what it says of %s is not used: %s", self._path, name, error)
        indexes = self._indexes()
        known = indexes.keys() & kept.models.keys()
        count = sum(indexes[name].recall_estimates(kept.models[name]) for name in known)
        log.info("state: goes on from %s, %.0f s old: prefixes of %d endpoints", self._path, age, count)

    async def data(self, *, at_last: bool) -> bytes | None:
        """What is to be written now; None: nothing. ``at_last``: before its time. Streams run in between."""
        now = self._clock.monotonic()
        if self._next == inf or (now < self._next and not at_last):
            return None
        self._next = now + INTERVAL
        notes: list[tuple[str, bytes]] = []
        for note in self._notes():
            notes.append(note)
            await asyncio.sleep(0)
        models = {}
        for name, index in self._indexes().items():
            if (kept := index.keep_estimates()).endpoints:
                models[name] = kept
            await asyncio.sleep(0)
        if not models and not notes and not self._there:
            return None
        data = msgspec.msgpack.encode(_Kept(VERSION, self._clock.wall(), models, notes))
        return data if len(data) <= MAX_BYTES else None

    def write(self, data: bytes) -> None:
        """Blocking. Raises OSError."""
        replace_file(self._path, data)
        self._there = True
