"""The block pool of an engine whose blocks have ids: which are in use, which are only remembered, and on which tier.

As ``simulator.blocks``: only full blocks have an id; several blocks may hold one; the least recently used is taken
first, and is forgotten when it is taken. What a host tier keeps is put there by ``simulator.virtual.offload``, and the
least recently used goes first. Pure: no time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias, cast


class Tier(Enum):
    GPU = "GPU"
    CPU = "CPU"


@dataclass(slots=True)
class Stored:
    """A run of blocks, each behind the one before. ``parent``: the block before the first; None: it begins a prompt,
    or, on the CPU, nothing is said of what is before it."""

    ids: Sequence[int]
    parent: int | None
    tier: Tier


@dataclass(slots=True)
class Removed:
    """Copies that are gone, one of each id."""

    ids: list[int]
    tier: Tier


PoolEvent: TypeAlias = Stored | Removed

HOST = -1
"""Of a found block: it is on the host."""


class Pool:
    """``size`` blocks on the GPU; ``host``: blocks that the host tier has room for."""

    def __init__(self, size: int, host: int = 0) -> None:
        self.size = size
        self._ids: list[int | None] = [None] * size
        self._users = [0] * size
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(size))
        self._holders: dict[int, int] = {}
        """id -> the block that has held it for longest"""
        self._copies: dict[int, list[int]] = {}
        """id -> the further blocks that hold it"""
        self.host_size = host
        self._host: OrderedDict[int, None] = OrderedDict()
        self._events: list[PoolEvent] = []

    @property
    def free(self) -> int:
        """Blocks that may be taken; some of them are remembered until then."""
        return len(self._free)

    @property
    def held(self) -> set[int]:
        """Ids that some block on the GPU has."""
        return set(self._holders)

    @property
    def held_on_host(self) -> set[int]:
        return set(self._host)

    def find(self, ids: Sequence[int], limit: int) -> list[int]:
        """Where the longest run of leading ``ids`` is, of at most ``limit``: blocks on the GPU, and behind them on the
        host, as ``HOST``."""
        host, asked = self._host, ids[:limit]
        found = list(map(self._holders.get, asked))
        if None not in found:
            return cast(list[int], found)
        run = end = found.index(None)
        while host and end < len(asked) and asked[end] in host:
            end += 1
        return cast(list[int], found[:run]) + [HOST] * (end - run)

    def fits(self, found: Sequence[int], wanted: int) -> bool:
        """Whether ``wanted`` more blocks can be taken beside those that were found on the GPU."""
        users = self._users
        if wanted > len(self._free):
            return False
        if wanted <= len(self._free) - len(found):
            return True
        return wanted <= len(self._free) - sum(1 for block in found if block != HOST and not users[block])

    def use(self, found: Sequence[int]) -> list[int]:
        """The blocks on the GPU that ``find`` found, in use once more."""
        users, free = self._users, self._free
        for block in found:
            before = users[block]
            if not before:
                del free[block]
            users[block] = before + 1
        return list(found)

    def take(self, count: int) -> list[int]:
        """``count`` blocks for new tokens, least recently used first, forgetting what they held.

        Raises KeyError if there are fewer.
        """
        free, users, ids = self._free, self._users, self._ids
        taken = [free.popitem(last=False)[0] for _ in range(count)]
        forgotten = []
        for block in taken:
            users[block] = 1
            if (name := ids[block]) is not None:
                ids[block] = None
                self._let_go(name, block)
                forgotten.append(name)
        if forgotten:
            self._removed(forgotten, Tier.GPU)
        return taken

    def release(self, blocks: Sequence[int]) -> None:
        """Give up one use of each, a request's last block first: what begins a prompt is forgotten last. Those without
        an id hold nothing that could be asked for, and are the first to be taken."""
        users, free, ids = self._users, self._free, self._ids
        for block in reversed(blocks):
            left = users[block] = users[block] - 1
            if not left:
                free[block] = None
                if ids[block] is None:
                    free.move_to_end(block, last=False)

    def name(self, blocks: Sequence[int], ids: Sequence[int], start: int, end: int) -> None:
        """``blocks[start:end]`` (a request's) hold ``ids[start:end]`` from now on."""
        for block, name in zip(blocks[start:end], ids[start:end], strict=True):
            self._ids[block] = name
            if self._holders.setdefault(name, block) != block:
                self._copies.setdefault(name, []).append(block)
        self._stored(ids[start:end], ids[start - 1] if start else None)

    def drain(self) -> list[PoolEvent]:
        """The events since the last call, in order."""
        events, self._events = self._events, []
        return events

    def _let_go(self, name: int, block: int) -> None:
        copies = self._copies.get(name)
        if copies is None:
            del self._holders[name]
            return
        if self._holders[name] == block:
            self._holders[name] = copies.pop(0)
        else:
            copies.remove(block)
        if not copies:
            del self._copies[name]

    def lacking(self, ids: Sequence[int]) -> list[int]:
        """Those that are not on the host; the others were used there just now."""
        host = self._host
        for each in ids:
            if each in host:
                host.move_to_end(each)
        return [each for each in ids if each not in host]

    def keep(self, names: Sequence[int]) -> None:
        """On the host."""
        host = self._host
        was: dict[int, bool] = {}  # of each that comes or goes: whether it was there before
        for name in names:
            if name in host:
                host.move_to_end(name)
                continue
            if len(host) >= self.host_size:
                was.setdefault(host.popitem(last=False)[0], True)
            was.setdefault(name, False)
            host[name] = None
        if new := [name for name, before in was.items() if not before and name in host]:
            self._events.append(Stored(new, None, Tier.CPU))
        if gone := [name for name, before in was.items() if before and name not in host]:
            self._removed(gone, Tier.CPU)

    def _stored(self, ids: Sequence[int], parent: int | None) -> None:
        last = self._events[-1] if self._events else None
        if isinstance(last, Stored) and last.tier is Tier.GPU and last.ids[-1] == parent:
            last.ids = (*last.ids, *ids)
        else:
            self._events.append(Stored(ids, parent, Tier.GPU))

    def _removed(self, names: list[int], tier: Tier) -> None:
        last = self._events[-1] if self._events else None
        if isinstance(last, Removed) and last.tier is tier:
            last.ids += names
        else:
            self._events.append(Removed(names, tier))
