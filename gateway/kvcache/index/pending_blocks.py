"""Blocks whose parent is not known: their position in a prompt, and so their key, is unknown until the parent comes.

Seen after history was lost. Engines announce a parent before its children, but not again when they reuse it, unless a
request asks for that. Pure.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from gateway.core.prompt import MediaItem

MAX_PENDING = 16_384
"""Blocks kept: some 10 MB, and half of what an engine holds that has room for 500,000 tokens."""

PENDING_COST = 5
"""Known blocks that take as much memory as a pending one, which keeps its tokens: some 600 bytes."""


@dataclass(slots=True)
class _Pending:
    parent: int
    tokens: array[int] | None
    media: tuple[MediaItem, ...]
    copies: int = 1


class PendingBlocks:
    """``blocks``: by engine hash, the oldest first; beyond ``MAX_PENDING`` these are dropped."""

    def __init__(self) -> None:
        self.blocks: OrderedDict[int, _Pending] = OrderedDict()
        self._children: dict[int, dict[int, None]] = {}

    def add(self, parent: int, block_hash: int, tokens: array[int] | None, media: tuple[MediaItem, ...] = ()) -> None:
        """One copy of a block. ``tokens``: None if its content is not known. ``media``: that begin in it."""
        pending = self.blocks.get(block_hash)
        if pending is not None:
            pending.copies += 1
            return
        self.blocks[block_hash] = _Pending(parent, tokens, media)
        self._children.setdefault(parent, {})[block_hash] = None
        self.drop_oldest(len(self.blocks) - MAX_PENDING)

    def remove(self, block_hash: int) -> bool:
        """One copy is gone; false if none was known."""
        pending = self.blocks.get(block_hash)
        if pending is None:
            return False
        pending.copies -= 1
        if not pending.copies:
            self._unlink(block_hash, self.blocks.pop(block_hash))
        return True

    def pop_children(self, parent: int) -> Iterator[tuple[int, array[int] | None, tuple[MediaItem, ...], int]]:
        """Take out the children of ``parent``, which is known now: (hash, tokens, media, copies)."""
        for block_hash in self._children.pop(parent, ()):
            pending = self.blocks.pop(block_hash)
            yield block_hash, pending.tokens, pending.media, pending.copies

    def drop_oldest(self, count: int) -> int:
        """Drop ``count`` blocks, or all; returns how many."""
        count = max(0, min(count, len(self.blocks)))
        for _ in range(count):
            self._unlink(*self.blocks.popitem(last=False))
        return count

    def _unlink(self, block_hash: int, pending: _Pending) -> None:
        siblings = self._children[pending.parent]
        del siblings[block_hash]
        if not siblings:
            del self._children[pending.parent]
