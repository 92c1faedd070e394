"""Remembers block keys of prefixes that were hashed before: of a conversation's next turn only new blocks are hashed.

Ids are taken in runs of 4 KB. A run is known by the key before it and one hash of all its bytes: 64 keys for the price
of some ten. The key before it stands for everything earlier, so that a run is found behind the same prefix only. An LRU
cache; to be used on the event loop only, as the index.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict

from xxhash import xxh3_64_intdigest

from gateway.core.prompt import BYTES_PER_ID, KEYS_KEPT, PrefixedIds
from gateway.kvcache.index.keys import chain, cutter

RUN = 1024
"""Ids of a run at most: half a run of a long prompt is hashed again, which takes 3 us, and a shorter run saves less."""

RUNS = 8192
"""Remembered of each model: 8 million tokens, 2.8 KB a run in blocks of 16. To hash one again takes 6 us."""


class KeyCache:
    """Of one index. ``keys`` computes what ``keys.chain`` does."""

    def __init__(self, runs: int = RUNS) -> None:
        self._limit = runs
        self._unit = 0
        self._runs: OrderedDict[tuple[int, int], list[int]] = OrderedDict()

    def __len__(self) -> int:
        """Runs."""
        return len(self._runs)

    def of_prefix(self, ids: PrefixedIds, unit: int, parent: int) -> tuple[array[int], array[int]]:
        """Keys of the whole blocks of the known prefix of ``ids``, and the ids behind these blocks, by reference."""
        name, prefix = (unit, parent), ids.prefix
        known = prefix.keys.get(name)
        if known is None:
            first = array("I", b"".join(ids.pieces))
            known = array("Q", self.keys(first, unit, parent)), first[len(first) // unit * unit :]
            if len(prefix.keys) >= KEYS_KEPT:
                del prefix.keys[next(iter(prefix.keys))]  # the oldest: other requests' salts come and go
            prefix.keys[name] = known
        return known

    def keys(self, ids: array[int], unit: int, parent: int) -> list[int]:
        """Keys of the whole blocks of ``ids``, behind the block whose key is ``parent``."""
        if unit != self._unit:
            self._runs.clear()
            self._unit = unit
        run = RUN // unit * unit
        if not run or len(ids) < run:
            return chain(ids, unit, parent)
        runs, digest, size, width = self._runs, xxh3_64_intdigest, run * BYTES_PER_ID, unit * BYTES_PER_ID
        cut = cutter(width, run // unit)
        keys: list[int] = []
        whole = len(ids) // run * run
        view = memoryview(ids).cast("B")
        for start in range(0, whole * BYTES_PER_ID, size):
            part = view[start : start + size]
            name = (parent, digest(part, parent))
            known = runs.get(name)
            if known is None:
                known = runs[name] = [parent := digest(block, parent) for block in cut(part)]
                if len(runs) > self._limit:
                    runs.popitem(last=False)
            else:
                runs.move_to_end(name)
                parent = known[-1]
            keys += known
        keys += chain(ids[whole:], unit, parent)
        return keys
