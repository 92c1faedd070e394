"""What texts came to, kept as a tree of their segments: the next turn of a conversation begins with the turn before.

A text is a path from the root; what begins alike shares its nodes, and a segment that stands in several places is kept
once. ``recall`` follows the path of a new text by comparing, not by searching: the child that was used last is nearly
always the next one. What is new has to be searched for cuts, which takes up to fifty times as long: who cannot wait for
that says how much is to be searched, and lets it go on elsewhere. Rules: bounded in bytes, the least recently used
forgotten first; texts are compared in full, so that no text can take the ids of another. ``recall``, ``go_on`` and
``remember`` may be called from any thread: reading takes no lock, since what is read is replaced whole, and writing
takes it for a slice of its work at a time, since the loop is among those that wait for it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import islice
from sys import getsizeof

from gateway.tokens.segments import LEAST, Cuts

OVERHEAD = 700
"""Bytes of a node beside its segment's text and ids: the objects and their places in three dictionaries, measured."""

SLICE = 128
"""Nodes that are entered with the lock held: some 0.1 ms."""

SHARE = 4
"""One text may take a quarter of the memory: a single long one must not push out all conversations."""


class Segment:
    """A part of a text. ``ids``: uint32 in bytes; None: not known yet. ``uses``: nodes that are made of it."""

    __slots__ = ("ids", "text", "uses")

    def __init__(self, text: str, ids: bytes | None = None) -> None:
        self.text = text
        self.ids = ids
        self.uses = 0


class _Node:
    """A segment behind others. ``latest``: the child that was used last. ``size``: bytes of the segments up to here."""

    __slots__ = ("children", "latest", "parent", "segment", "size")

    def __init__(self, segment: Segment, parent: _Node | None) -> None:
        self.segment = segment
        self.parent = parent
        self.size: int = _bytes(segment) + (0 if parent is None else parent.size)
        self.children: dict[Segment, _Node] = {}
        self.latest: _Node | None = None


@dataclass(slots=True)
class Recalled:
    """``text`` up to ``at`` as its segments, in order; those of ``missing`` have no ids yet. ``node``: where the path
    goes on; None: nothing is known behind the last segment."""

    text: str
    segments: list[Segment]
    node: _Node | None
    at: int
    missing: list[Segment] = field(default_factory=list)

    @property
    def new(self) -> int:
        """Characters to encode, as far as is known: those that were not looked at may be."""
        return sum(len(segment.text) for segment in self.missing) + len(self.text) - self.at


class Memory:
    """Of one tokenizer. ``limit``: bytes, about."""

    def __init__(self, limit: int, cuts: Cuts) -> None:
        self.size = 0
        self._limit = limit
        self._cuts = cuts
        self._root = _Node(Segment(""), None)
        self._segments: dict[str, Segment] = {}
        self._used: OrderedDict[_Node, None] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Nodes."""
        return len(self._used)

    def recall(self, text: str, most: int | None = None) -> Recalled:
        """The segments of ``text``, with the ids that are known. ``most``: characters that are searched for cuts; None:
        as many as it takes."""
        segments, node = self._follow(text)
        recalled = Recalled(text, segments, node, sum([len(segment.text) for segment in segments]))
        self.go_on(recalled, most)
        return recalled

    def go_on(self, recalled: Recalled, most: int | None = None) -> None:
        """Look for what ``recalled`` lacks, from where it ends. ``most``: as for ``recall``."""
        cuts, text, segments, missing = self._cuts, recalled.text, recalled.segments, recalled.missing
        node, at, size = recalled.node, recalled.at, len(text)
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
        recalled.node, recalled.at = node, at

    def _follow(self, text: str) -> tuple[list[Segment], _Node | None]:
        """The segments from the beginning on that were used last, each behind the one before it, and the last one's
        node.

        Between two of them a text was cut before, and whether it can be is told by what stands around: by the letters
        which are the same here. So only the end of the last has to be looked at.
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

    def look_again(self, missing: list[Segment]) -> None:
        """Enter the ids of those that another thread has encoded meanwhile."""
        for segment in missing:
            known = self._segments.get(segment.text)
            if known is not None:
                segment.ids = known.ids

    def remember(self, segments: list[Segment]) -> None:
        """A text's segments, all with their ids, were used now. A short last one is not worth its place."""
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
        # From the last to the first: a node is used after all behind it, so that the ends of paths are forgotten first.
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
