"""Cache of encoded text: a prefix tree of segments, so that a conversation's next turn finds the turns before it.

A text is a path from the root. Texts with the same beginning share its nodes, and a segment that occurs in several
places is stored once. ``look_up`` follows a new text's path by comparing, not by searching: the child that was used
last is nearly always the next one. New text has to be searched for split points, which takes up to fifty times as long;
so a caller on the event loop limits how much is searched, and the rest is done in a thread.

Rules: bounded in bytes, the least recently used is evicted first. Texts are compared in full, so that no text can get
another's ids. ``look_up``, ``resume`` and ``add`` may be called from any thread: readers take no lock, since what they
read is replaced as a whole; writers hold it for a slice of their work at a time, since the loop waits for it, too.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import islice
from sys import getsizeof

from gateway.tokens.segments import LEAST, Cuts

OVERHEAD = 700
"""Bytes of a node beside its segment's text and ids: the objects and their entries in three dictionaries, measured."""

SLICE = 128
"""Nodes that are inserted while the lock is held once: some 0.1 ms."""

SHARE = 4
"""One text may take a quarter of the memory: a single long one must not push out all conversations."""


class Segment:
    """A part of a text. ``ids``: uint32 in bytes; None: not known yet. ``uses``: the number of nodes that hold it."""

    __slots__ = ("ids", "text", "uses")

    def __init__(self, text: str, ids: bytes | None = None) -> None:
        self.text = text
        self.ids = ids
        self.uses = 0


class _Node:
    """A segment after others. ``latest``: the child that was used last. ``size``: bytes of the segments up to here."""

    __slots__ = ("children", "latest", "parent", "segment", "size")

    def __init__(self, segment: Segment, parent: _Node | None) -> None:
        self.segment = segment
        self.parent = parent
        self.size: int = _bytes(segment) + (0 if parent is None else parent.size)
        self.children: dict[Segment, _Node] = {}
        self.latest: _Node | None = None


@dataclass(slots=True)
class Lookup:
    """What is known of ``text`` up to ``at``: its segments in order, of which those in ``missing`` have no ids yet.

    ``node``: where the path continues; None: nothing is known after the last segment.
    """

    text: str
    segments: list[Segment]
    node: _Node | None
    at: int
    missing: list[Segment] = field(default_factory=list)

    @property
    def new(self) -> int:
        """Characters to encode, as far as is known. Characters that were not looked at yet are counted."""
        return sum(len(segment.text) for segment in self.missing) + len(self.text) - self.at


class SegmentCache:
    """The cache of one tokenizer. ``limit``: bytes, about."""

    def __init__(self, limit: int, cuts: Cuts) -> None:
        self.size = 0
        self._limit = limit
        self._cuts = cuts
        self._root = _Node(Segment(""), None)
        self._segments: dict[str, Segment] = {}
        self._used: OrderedDict[_Node, None] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """The number of nodes."""
        return len(self._used)

    def look_up(self, text: str, most: int | None = None) -> Lookup:
        """Split ``text`` into segments, with the ids that are known. ``most``: characters that are searched for split
        points; None: all."""
        segments, node = self._follow(text)
        lookup = Lookup(text, segments, node, sum([len(segment.text) for segment in segments]))
        self.resume(lookup, most)
        return lookup

    def resume(self, lookup: Lookup, most: int | None = None) -> None:
        """Continue ``lookup`` from where it stopped. ``most``: as for ``look_up``."""
        cuts, text, segments, missing = self._cuts, lookup.text, lookup.segments, lookup.missing
        node, at, size = lookup.node, lookup.at, len(text)
        left = size if most is None else most
        while at < size and left > 0:
            latest = None if node is None else node.latest
            if latest is not None and text.startswith(latest.segment.text, at):
                end = at + len(latest.segment.text)
                if cuts.ends(text, end):
                    segments.append(latest.segment)
                    node, at = latest, end
                    continue
            end = cuts.end(text, at)
            left -= end - at
            part = text[at:end]
            segment = self._segments.get(part)
            if segment is None:
                segment = Segment(part)
                missing.append(segment)
                node = None
            elif node is not None:
                node = node.children.get(segment)
            segments.append(segment)
            at = end
        lookup.node, lookup.at = node, at

    def _follow(self, text: str) -> tuple[list[Segment], _Node | None]:
        """The segments from the beginning that were used last, each after the one before it, and the last one's node.

        An earlier text was split between each two of them. Whether a split is allowed depends only on the letters
        around it, which are the same here. So only the end of the last segment has to be checked.
        """
        segments: list[Segment] = []
        node, at = self._root, 0
        while (latest := node.latest) is not None and text.startswith(latest.segment.text, at):
            node = latest
            segments.append(node.segment)
            at += len(node.segment.text)
        if segments and not self._cuts.ends(text, at):
            segments.pop()
            return segments, node.parent
        return segments, node

    def fill_in(self, missing: list[Segment]) -> None:
        """Enter the ids of segments that another thread has encoded meanwhile."""
        for segment in missing:
            known = self._segments.get(segment.text)
            if known is not None:
                segment.ids = known.ids

    def add(self, segments: list[Segment]) -> None:
        """Store a text's segments, which all have their ids, as the most recently used. A short last one is left
        out."""
        if segments and len(segments[-1].text) < LEAST:
            segments = segments[:-1]
        path: list[_Node] = []
        node = self._root
        for segment in segments:
            latest = node.latest
            if latest is None or latest.segment is not segment:
                break
            node = latest
            path.append(node)
        rest = segments[len(path) :]
        if (node.size + sum([_bytes(segment) for segment in rest])) * SHARE > self._limit:
            return
        left = iter(rest)
        while some := list(islice(left, SLICE)):
            with self._lock:
                for segment in some:
                    node = self._enter(node, segment)
                    path.append(node)
        # From the last to the first: each node becomes more recently used than all nodes below it, so that the ends of
        # paths are evicted first.
        back = reversed(path)
        while nodes := list(islice(back, SLICE)):
            with self._lock:
                for node in nodes:
                    if node in self._used:
                        self._used.move_to_end(node)
        while self.size > self._limit:
            with self._lock:
                for _ in range(SLICE):
                    if self.size > self._limit:
                        self._forget_oldest()

    def _enter(self, parent: _Node, segment: Segment) -> _Node:
        segment = self._segments.get(segment.text, segment)
        node = parent.children.get(segment)
        if node is None:
            node = _Node(segment, parent)
            if not segment.uses:
                self._segments[segment.text] = segment
                self.size += _bytes(segment)
            segment.uses += 1
            self.size += OVERHEAD
            parent.children[segment] = node
            self._used[node] = None
        parent.latest = node
        return node

    def _forget_oldest(self) -> None:
        node, _ = self._used.popitem(last=False)
        self.size -= OVERHEAD
        parent, segment = node.parent, node.segment
        if parent is not None:
            parent.children.pop(segment, None)
            if parent.latest is node:
                parent.latest = None
        segment.uses -= 1
        if not segment.uses:
            del self._segments[segment.text]
            self.size -= _bytes(segment)


def _bytes(segment: Segment) -> int:
    return getsizeof(segment.text) + getsizeof(segment.ids)
