"""Blocks whose parent is not known: their place in a prompt, and so their key, is unknown until the parent comes.

Seen after history was lost. Engines announce a parent before its children, but not again when they reuse it, unless a
request asks for that. Pure.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from gateway.framework import Medium

MAX_ORPHANS = 16_384
"""Blocks kept: some 10 MB, and half of what an engine holds that has room for 500,000 tokens."""

COST = 5
"""Known blocks that take as much memory as an orphan, which keeps its tokens: some 600 bytes."""


@dataclass(slots=True)
class _Orphan:
    parent: int
    tokens: array[int] | None
    media: tuple[Medium, ...]
    copies: int = 1


class Orphans:
    """By engine hash; the oldest are forgotten beyond ``MAX_ORPHANS``."""

    def __init__(self) -> None:
        self._known: OrderedDict[int, _Orphan] = OrderedDict()
        self._children: dict[int, dict[int, None]] = {}

    def __len__(self) -> int:
        return len(self._known)

    def add(self, parent: int, name: int, tokens: array[int] | None, media: tuple[Medium, ...] = ()) -> None:
        """One copy of a block. ``tokens``: None where they do not tell its content. ``media``: that begin in it."""
        orphan = self._known.get(name)
        if orphan is not None:
            orphan.copies += 1
            return
        self._known[name] = _Orphan(parent, tokens, media)
        self._children.setdefault(parent, {})[name] = None
        self.forget_oldest(len(self._known) - MAX_ORPHANS)

    def take(self, name: int) -> bool:
        """One copy is gone; false if none was known."""
        orphan = self._known.get(name)
        if orphan is None:
            return False
        orphan.copies -= 1
        if not orphan.copies:
            self._leave_parent(name, self._known.pop(name))
        return True

    def adopt(self, parent: int) -> Iterator[tuple[int, array[int] | None, tuple[Medium, ...], int]]:
        """The children of ``parent``, which is known now, as (hash, tokens, media, copies): no orphans any more."""
        for name in self._children.pop(parent, ()):
            orphan = self._known.pop(name)
            yield name, orphan.tokens, orphan.media, orphan.copies

    def forget_oldest(self, count: int) -> int:
        """Forget ``count`` blocks, or all; returns how many."""
        count = max(0, min(count, len(self._known)))
        for _ in range(count):
            self._leave_parent(*self._known.popitem(last=False))
        return count

    def _leave_parent(self, name: int, orphan: _Orphan) -> None:
        siblings = self._children[orphan.parent]
        del siblings[name]
        if not siblings:
            del self._children[orphan.parent]
