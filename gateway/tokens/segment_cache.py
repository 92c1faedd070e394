"""Cache of encoded text: a prefix tree of segments, so that a conversation's next turn finds the turns before it.

A text is a path from the root. Texts with the same beginning share its nodes, and a segment that occurs in several
places is stored once. ``look_up`` follows a new text's path by comparing, not by searching: the child that was used
last is nearly always the next one. New text has to be searched for split points, which takes up to fifty times as long;
so a caller on the event loop limits how much is searched, and the rest is done in a thread.

Rules: bounded in bytes, the least recently used is evicted first. Texts are compared in full, so that no text can get
another's ids. ``look_up`` and ``add`` may be called from any thread: readers take no lock, since what they
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

    def __init__(self, segment: Segment, parent: _Node | None, size: int) -> None:
        self.segment = segment
        self.parent = parent
        self.size = size
        self.children: dict[Segment, _Node] = {}
        self.latest: _Node | None = None


@dataclass(slots=True)
class Lookup:
    """What is known of ``text`` up to ``at``: its segments in order, of which those in ``missing`` have no ids yet.

    ``new``: characters to encode, as far as is known. Those that were not looked at yet are counted. ``node``: where
    the path continues; None: nothing is known after the last segment.
    """

    text: str
    segments: list[Segment] = field(default_factory=list)
    missing: list[Segment] = field(default_factory=list)
    at: int = 0
    new: int = 0
    node: _Node | None = None


class SegmentCache:
    """The cache of one tokenizer. ``limit``: bytes, about. ``segments``: by text, all with their ids; only read it."""

    def __init__(self, limit: int, cuts: Cuts) -> None:
        self.size = 0
        self._limit = limit
        self._cuts = cuts
        self._root = _Node(Segment(""), None, 0)
        self.segments: dict[str, Segment] = {}
        self._used: OrderedDict[_Node, None] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """The number of nodes."""
        return len(self._used)

    def look_up(self, lookup: Lookup, most: int | None = None) -> Lookup:
        """Begin or continue ``lookup``: split its text into segments, with the ids that are known. Returns it.

        ``most``: characters that are searched for split points; None: all.
        """
        cuts, text, segments = self._cuts, lookup.text, lookup.segments
        node, at, size, unknown = lookup.node, lookup.at, len(text), 0
        if not segments:
            node, lookup.new = self._root, size
        left = size if most is None else most
        while at < size:
            # The segments that were used last, each after the one before it. An earlier text was split between each two
            # of them. Whether a split is allowed depends only on the letters around it, which are the same here. So
            # only the end of the last segment has to be checked.
            start = node
            while node is not None:
                latest = node.latest
                if latest is None or not text.startswith(latest.segment.text, at):
                    break
                node = latest
                segments.append(node.segment)
                at += len(node.segment.text)
            if node is not None and node is not start and not cuts.ends(text, at):
                at -= len(segments.pop().text)
                node = node.parent
            if at == size or left <= 0:
                break
            end = cuts.end(text, at)
            left -= end - at
            part = text[at:end]
            segment = self.segments.get(part)
            if segment is None:
                segment = Segment(part)
                lookup.missing.append(segment)
                unknown += end - at
                node = None
            elif node is not None:
                node = node.children.get(segment)
            segments.append(segment)
            at = end
        lookup.new += unknown - (at - lookup.at)
        lookup.node, lookup.at = node, at
        return lookup

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
        size = node.size
        for segment in rest:
            size += getsizeof(segment.text) + getsizeof(segment.ids)
        if size * SHARE > self._limit:
            return
        left = iter(rest)
        while some := list(islice(left, SLICE)):
            with self._lock:
                for segment in some:
                    known = self.segments.get(segment.text, segment)
                    child = node.children.get(known)
                    if child is None:
                        size = getsizeof(known.text) + getsizeof(known.ids)
                        child = node.children[known] = _Node(known, node, node.size + size)
                        if not known.uses:
                            self.segments[known.text] = known
                            self.size += size
                        known.uses += 1
                        self.size += OVERHEAD
                        self._used[child] = None
                    node.latest = child
                    node = child
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
            del self.segments[segment.text]
            self.size -= getsizeof(segment.text) + getsizeof(segment.ids)
