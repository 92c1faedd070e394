"""The block pool: which blocks are in use, which are only remembered, and what is said of it in KV events.

vLLM's semantics (v1/core/block_pool.py): only full blocks have a name; one name may be held by several blocks; a block
is forgotten when it is taken again, oldest use first, not when it is freed; clearing is announced with the next step.
Pure: no time, no sockets.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias


@dataclass(frozen=True, slots=True)
class Stored:
    """A run of blocks got names. ``tokens``: those of all of them; ``extra``: one entry for each block."""

    hashes: tuple[bytes, ...]
    parent: bytes | None
    tokens: Sequence[int]
    block_size: int
    adapter: str | None
    extra: tuple[tuple[Any, ...] | None, ...]


@dataclass(frozen=True, slots=True)
class Removed:
    """One block was taken for something else. Others with the same name may remain."""

    hash: bytes


@dataclass(frozen=True, slots=True)
class Cleared:
    """All names are gone."""


KvEvent: TypeAlias = Stored | Removed | Cleared


class MediaItem(NamedTuple):
    """An image, a sound or a video in a prompt: its placeholders' place, and what its content is known by."""

    offset: int
    length: int
    identifier: str


class HashChain:
    """The names of one request's blocks, in order; grows with its tokens.

    A name is a hash of the tokens of the block and of the name before it. The first block's also holds the salt,
    every block's the adapter, and one with a part of a medium that. Engines do not agree on names and nobody may depend
    on how they are made. ``media``: by their place.
    """

    def __init__(
        self,
        block_size: int,
        seed: int = 0,
        adapter: str | None = None,
        salt: str | None = None,
        media: Sequence[MediaItem] = (),
    ) -> None:
        self.block_size = block_size
        self.adapter = adapter
        self.salt = salt
        self.media = media
        self.names: list[bytes] = []
        self._last = hashlib.sha256(f"{seed}/{block_size}/{adapter or ''}/{salt or ''}".encode()).digest()

    def extend(self, tokens: array[int]) -> None:
        """Name the full blocks of ``tokens`` (the request's, from its first) that have no name yet."""
        size = self.block_size
        width = size * tokens.itemsize
        known = len(self.names)
        data = memoryview(tokens).cast("B")[known * width :]
        last = self._last
        for start in range(0, len(data) - width + 1, width):
            inside = self._media(len(self.names)) if self.media else []
            media = repr(inside).encode() if inside else b""
            last = hashlib.sha256(last + data[start : start + width] + media).digest()
            self.names.append(last)
        self._last = last

    def extra(self, block: int) -> tuple[Any, ...] | None:
        """The untagged extra keys that an event carries for a block."""
        keys: list[Any] = [self.adapter] if self.adapter else []
        keys += self._media(block)
        if block == 0 and self.salt:
            keys.append(self.salt)
        return tuple(keys) or None

    def _media(self, block: int) -> list[tuple[str, int]]:
        """Those with a part in the block, and where they begin, from its first token on."""
        start, end = block * self.block_size, (block + 1) * self.block_size
        return [
            (identifier, offset - start)
            for offset, length, identifier in self.media
            if offset < end and start < offset + length
        ]


class BlockPool:
    """``size`` blocks, of which block 0 is the null block and never handed out."""

    def __init__(self, size: int, block_size: int) -> None:
        self.size = size
        self.block_size = block_size
        self._names: list[bytes | None] = [None] * size
        self._users = [0] * size
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, size))
        self._holders: dict[bytes, OrderedDict[int, None]] = {}
        self._events: list[KvEvent] = []

    @property
    def free(self) -> int:
        """Blocks that may be taken; some of them are remembered until then."""
        return len(self._free)

    @property
    def usage(self) -> float:
        """0..1: blocks in use by live requests."""
        return 1.0 - self.free / (self.size - 1)

    @property
    def held(self) -> set[bytes]:
        """Every name that some block has now."""
        return set(self._holders)

    def match(self, names: Sequence[bytes], limit: int) -> list[int]:
        """Blocks that hold the longest prefix of ``names``, at most ``limit`` of them."""
        blocks: list[int] = []
        for name in names[:limit]:
            holders = self._holders.get(name)
            if holders is None:
                break
            blocks.append(next(iter(holders)))
        return blocks

    def fits(self, hits: Sequence[int], wanted: int) -> bool:
        """Whether ``wanted`` more blocks can be taken beside the hit ones."""
        idle = sum(1 for block in hits if not self._users[block])
        return wanted <= self.free - idle

    def touch(self, blocks: Iterable[int]) -> None:
        """Use blocks that are remembered: they cannot be taken until they are released."""
        for block in blocks:
            if not self._users[block]:
                del self._free[block]
            self._users[block] += 1

    def take(self, count: int) -> list[int]:
        """``count`` blocks for new tokens, least recently used first, forgetting what they held.

        Raises IndexError if there are fewer.
        """
        if count > len(self._free):
            raise IndexError(f"{count} blocks asked for, {len(self._free)} free")
        taken = [self._free.popitem(last=False)[0] for _ in range(count)]
        for block in taken:
            self._users[block] = 1
            self._forget(block)
        return taken

    def release(self, blocks: Sequence[int]) -> None:
        """Give up one use of each, a request's last block first: what begins a prompt is forgotten last. Those without
        a name hold nothing that could be asked for, and are the first to be taken."""
        for block in reversed(blocks):
            self._users[block] -= 1
            if not self._users[block]:
                self._free[block] = None
                if self._names[block] is None:
                    self._free.move_to_end(block, last=False)

    def name(self, blocks: Sequence[int], chain: HashChain, tokens: Sequence[int], start: int, end: int) -> None:
        """Name ``blocks[start:end]`` (a request's) by its chain; its tokens from the first on are ``tokens``."""
        if start >= end:
            return
        for index in range(start, end):
            block, name = blocks[index], chain.names[index]
            self._names[block] = name
            self._holders.setdefault(name, OrderedDict())[block] = None
        self.announce(chain, tokens, start, end)

    def announce(self, chain: HashChain, tokens: Sequence[int], start: int, end: int) -> None:
        """Say again that blocks ``start`` to ``end`` of a request are held. Nothing changes but what is told."""
        size = self.block_size
        self._events.append(
            Stored(
                hashes=tuple(chain.names[start:end]),
                parent=chain.names[start - 1] if start else None,
                tokens=tokens[start * size : end * size],
                block_size=size,
                adapter=chain.adapter,
                extra=tuple(chain.extra(index) for index in range(start, end)),
            )
        )

    def clear(self) -> bool:
        """Forget all names. False, and nothing is done, while any block is in use."""
        if self.free != self.size - 1:
            return False
        self._names = [None] * self.size
        self._holders.clear()
        self._events.append(Cleared())
        return True

    def drain(self) -> list[KvEvent]:
        """The events since the last call, in order."""
        events, self._events = self._events, []
        return events

    def _forget(self, block: int) -> None:
        name = self._names[block]
        if name is None:
            return
        self._names[block] = None
        holders = self._holders[name]
        del holders[block]
        if not holders:
            del self._holders[name]
        self._events.append(Removed(name))
