"""Cache of encoded text: a prefix tree of segments, so that a conversation's next turn finds the turns before it.

A text is a path from the root. Texts with the same beginning share its nodes, and a segment that occurs in several
places is stored once. ``look_up`` follows a new text's path by comparing, not by searching: the child that was used
last is nearly always the next one. New text has to be searched for split points, which takes up to fifty times as long;
so a caller on the event loop limits how much is searched, and the rest is done in a thread. Many nodes in a row that a
second text leads through become a *span*: their text in one piece, which is compared at once, and their ids in one
piece.

Rules: bounded in bytes, the least recently used is evicted first. Texts are compared in full, so that no text can get
another's ids. ``look_up`` and ``add`` may be called from any thread: readers take no lock, since what they
read is replaced as a whole; writers hold it for a slice of their work at a time, since the loop waits for it, too.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from itertools import chain, islice, pairwise
from sys import getsizeof

import msgspec

from gateway.core.prompt import BYTES_PER_ID, KnownPrefix
from gateway.tokens.segments import LEAST, Cuts

OVERHEAD = 700
"""Bytes of a node beside its segment's text and ids: the objects and their entries in three dictionaries, measured."""

SLICE = 128
"""Nodes that are inserted while the lock is held once: some 0.1 ms."""

SHARE = 4
"""One text may take a quarter of the memory: a single long one must not push out all conversations."""


HOPS = 16
"""Nodes and spans in a row from which a span is made. To follow one takes some 0.3 us in place, three memory accesses
that miss the processor's caches; so a span is made anew at most once in 16 turns of a conversation."""

SPANS = 4
"""Spans may take a quarter of the memory: what they hold is in their nodes, too."""

STALE = 8
"""The nodes under a span become the most recently used ones again when nodes of an eighth of the memory have become so
since: they are then far from being evicted, and are rarely touched."""

KEYS_BYTES = 4
"""Of the block keys of one token, which are kept with a span: two lists of keys of 8 bytes for 4 tokens or more."""


class Segment(msgspec.Struct, eq=False):
    """A part of a text. ``ids``: uint32 in bytes; None: not known yet. ``uses``: the number of nodes that hold it."""

    text: str
    ids: bytes | None = None
    uses: int = 0


class _Node(msgspec.Struct, eq=False):
    """A segment after others. ``latest``: the child that was used last. ``size``: bytes of the segments up to here.

    ``own``: bytes of its own. ``span``: from here on; None: there is none.
    """

    segment: Segment
    parent: _Node | None
    size: int
    own: int
    children: dict[Segment, _Node] = {}
    latest: _Node | None = None
    span: _Span | None = None


class _Span(Segment, eq=False, kw_only=True):
    """The segments of the nodes from ``start`` to ``end``, joined. ``prefix``: all ids from the text's beginning to
    here. ``moved``: the cache's count of moved bytes when the nodes were last moved. ``size``: bytes."""

    start: _Node
    end: _Node
    prefix: KnownPrefix
    size: int
    moved: int = 0


class Lookup(msgspec.Struct, eq=False):
    """What is known of ``text`` up to ``at``: its segments in order, of which those in ``missing`` have no ids yet.

    ``new``: characters to encode, as far as is known. Those that were not looked at yet are counted. ``node``: where
    the path continues; None: nothing is known after the last segment. ``path``: the nodes in which the first of
    ``segments`` end. ``runs``: how long the path was each time that its next node was not the one used last.
    ``prefix``: of the last span; None: there is none. ``shared``: how many of ``segments`` end with that span.
    """

    text: str
    segments: list[Segment] = []
    missing: list[Segment] = []
    at: int = 0
    new: int = 0
    node: _Node | None = None
    path: list[_Node] = []
    runs: list[int] = []
    prefix: KnownPrefix | None = None
    shared: int = 0


class SegmentCache:
    """The cache of one tokenizer. ``limit``: bytes, about. ``segments``: by text, all with their ids; only read it.

    ``hops``: see ``HOPS``.
    """

    def __init__(self, limit: int, cuts: Cuts, hops: int = HOPS) -> None:
        self.size = 0
        self._limit = limit
        self._cuts = cuts
        self._hops = hops
        self._root = _Node(Segment(""), None, 0, 0)
        self.segments: dict[str, Segment] = {}
        self._used: OrderedDict[_Node, None] = OrderedDict()
        self._moved = 0
        self._spans: OrderedDict[_Span, None] = OrderedDict()
        self._spans_size = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """The number of nodes."""
        return len(self._used)

    def look_up(self, lookup: Lookup, most: int | None = None) -> Lookup:
        """Begin or continue ``lookup``: split its text into segments, with the ids that are known. Returns it.

        ``most``: characters that are searched for split points; None: all.
        """
        cuts, text, segments, path = self._cuts, lookup.text, lookup.segments, lookup.path
        node, at, size, unknown = lookup.node, lookup.at, len(text), 0
        if not segments:
            node, lookup.new = self._root, size
        left = size if most is None else most
        while at < size:
            # The segments that were used last, each after the one before it. An earlier text was split between each two
            # of them. Whether a split is allowed depends only on the letters around it, which are the same here. So
            # only the end of the last segment has to be checked, and that of a span, which is followed by any.
            start = node
            while node is not None:
                latest = node.latest
                if latest is None:
                    break
                segment = latest.segment
                span = latest.span
                if span is not None and self._leads(span, text, at):
                    segment, lookup.prefix, lookup.shared = span, span.prefix, len(segments) + 1
                    node = start = span.end
                elif text.startswith(segment.text, at):
                    node = latest
                else:
                    break
                segments.append(segment)
                path.append(node)
                at += len(segment.text)
            if node is not None and node is not start and not cuts.ends(text, at):
                at -= len(segments.pop().text)
                path.pop()
                node = node.parent
            if at == size or left <= 0:
                break
            end = cuts.end(text, at)
            left -= end - at
            part = text[at:end]
            known = self.segments.get(part)
            if known is None:
                known = Segment(part)
                lookup.missing.append(known)
                unknown += end - at
                node = None
            elif node is not None:
                node = node.children.get(known)
                if node is not None:
                    lookup.runs.append(len(path))
                    span = node.span
                    if span is not None and self._leads(span, text, at):
                        known, node, end = span, span.end, at + len(span.text)
                        lookup.prefix, lookup.shared = span.prefix, len(segments) + 1
                    path.append(node)
            segments.append(known)
            at = end
        lookup.new += unknown - (at - lookup.at)
        lookup.node, lookup.at = node, at
        return lookup

    def add(self, lookup: Lookup) -> None:
        """Store a text's segments, which all have their ids, as the most recently used. A short last one is left out.

        Nothing is stored if what was known has been evicted meanwhile.
        """
        segments, known = lookup.segments, lookup.path
        count = len(segments)
        if count and len(segments[-1].text) < LEAST:
            count -= 1
        with self._lock:
            node = known[-1] if known else self._root
            if known and node not in self._used:
                return
            for at in lookup.runs:
                self._first(segments[at], known[at])
            if self._spans:
                for segment in segments[: len(known)]:
                    if isinstance(segment, _Span) and segment in self._spans:
                        self._spans.move_to_end(segment)
            for start, end in pairwise((0, *lookup.runs, len(known))):
                if end - start > self._hops:
                    self._join(lookup, start, end)
        size = node.size
        for segment in segments[len(known) : count]:
            size += getsizeof(segment.text) + getsizeof(segment.ids)
        if size * SHARE > self._limit:
            return
        left = islice(segments, len(known), count)
        path: list[_Node] = []
        while some := list(islice(left, SLICE)):
            with self._lock:
                for segment in some:
                    stored = self.segments.get(segment.text, segment)
                    child = node.children.get(stored)
                    if child is None:
                        size = getsizeof(stored.text) + getsizeof(stored.ids)
                        child = node.children[stored] = _Node(stored, node, node.size + size, OVERHEAD + size)
                        if not stored.uses:
                            self.segments[stored.text] = stored
                            self.size += size
                        stored.uses += 1
                        self.size += OVERHEAD
                        self._used[child] = None
                    node.latest = child
                    node = child
                    path.append(node)
        # From the last to the first: each node becomes more recently used than all nodes below it, so that the ends of
        # paths are evicted first.
        back = chain(reversed(path), reversed(known) if lookup.prefix is None else self._back(lookup))
        while nodes := list(islice(back, SLICE)):
            with self._lock:
                for node in nodes:
                    if node in self._used:
                        self._used.move_to_end(node)
                    self._moved += node.own
        while self.size > self._limit:
            with self._lock:
                for _ in range(SLICE):
                    if self.size > self._limit:
                        self._forget_oldest()

    def _leads(self, span: _Span, text: str, at: int) -> bool:
        """Whether the path of ``text`` leads through the whole span, and it may be cut at the span's end."""
        if not text.startswith(span.text, at) or span.end not in self._used:
            return False
        return self._cuts.ends(text, at + len(span.text)) is not None

    def _back(self, lookup: Lookup) -> Iterator[_Node]:
        """The nodes of the path from its end to its beginning, but for those under spans that were moved lately."""
        for segment, end in zip(reversed(lookup.segments[: len(lookup.path)]), reversed(lookup.path), strict=True):
            if not isinstance(segment, _Span):
                yield end
            elif (self._moved - segment.moved) * STALE >= self._limit:
                node: _Node | None = end
                moved = self._moved
                while node is not None and node is not segment.start.parent:
                    yield node
                    moved += node.own
                    node = node.parent
                segment.moved = moved

    def _first(self, segment: Segment, node: _Node) -> None:
        """The path went on with ``node``, or the span that begins there, and not with the node that was used last."""
        if isinstance(segment, _Span):
            node = segment.start
        if node.parent is not None and node in self._used:
            node.parent.latest = node

    def _join(self, lookup: Lookup, start: int, end: int) -> None:
        """Make a span of these segments of a path, in the place of those that are among them."""
        segments = lookup.segments[start:end]
        first = segments[0].start if isinstance(segments[0], _Span) else lookup.path[start]
        for segment in segments:
            if isinstance(segment, _Span):
                self._drop(segment)
        if first.span is not None:
            self._drop(first.span)
        count = sum([len(one.ids or b"") for one in lookup.segments[:end]]) // BYTES_PER_ID
        text, ids = "".join([one.text for one in segments]), b"".join([one.ids or b"" for one in segments])
        size = getsizeof(text) + getsizeof(ids) + KEYS_BYTES * count + OVERHEAD
        span = _Span(text, ids, start=first, end=lookup.path[end - 1], prefix=KnownPrefix(count), size=size)
        limit = self._limit // SPANS
        if span.size > limit or first not in self._used:
            return
        first.span = span
        self._spans[span] = None
        self._spans_size += span.size
        self.size += span.size
        while self._spans_size > limit:
            self._drop(next(iter(self._spans)))

    def _drop(self, span: _Span) -> None:
        if span in self._spans:
            del self._spans[span]
            span.start.span = None
            self._spans_size -= span.size
            self.size -= span.size

    def _forget_oldest(self) -> None:
        node, _ = self._used.popitem(last=False)
        if node.span is not None:
            self._drop(node.span)
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
