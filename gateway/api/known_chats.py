"""Beginnings of chats that are remembered by their bytes: what was parsed there before is not parsed again.

A conversation's next turn begins with the bytes of the turn before it, and the chats of one application begin with the
same system prompt. To compare 128 KB takes 2 us, and to parse them 60.

Why the result is that of the whole body: a beginning ends behind a message of a body that was parsed. In a body that
begins so, a parser is in the same state there. So the body is parsed with a mark in the place of the known messages. No
client knows the mark, so that it is nowhere else: if it is then found as the first message, those in its place are the
first messages of this body. In any other case, an error included, the body is parsed whole.

Rules: texts are compared in full. Bounded in bytes: there are two generations, of which the older is dropped when the
younger is full. Only chats in OpenAI's form are remembered, and only those of ``LEAST`` bytes.
Other chats that are in use stay, however long one chat is.
"""

from __future__ import annotations

import re
import secrets
import sys
from collections.abc import Mapping, Sequence
from itertools import accumulate, repeat
from typing import Any, NamedTuple

import msgspec
from xxhash import xxh3_64_intdigest

from gateway.api import bounds
from gateway.api.body import JsonBody
from gateway.api.field_filter import Fields
from gateway.api.prompts import MESSAGES
from gateway.api.settings import PassThroughSettings
from gateway.core.prompt import KnownMessages
from gateway.errors import GatewayError

LEAST = 16 * 1024
"""Bytes of a beginning that is remembered. To parse so many takes as long as to find it."""

STEP = 4096
"""Bytes behind a beginning from which on another one is remembered, and not parsed each time."""

MEMORY = 64 * 1024 * 1024
"""Bytes of all beginnings together, their parsed messages included: an estimate, which is seldom less than what they
take."""

SHARE = 8
"""One chat has at most this part of the memory. A request adds its chat twice at most: in half of the memory, others'
chats that are in use stay beside any chat."""

GROWTH = 4 / 3
"""Factor from one place, at which some bytes are hashed, to the next. A place knows one beginning with these bytes: the
latest that reaches no further place, or else the first of all."""

CHECKPOINTS = 18
"""Such places: up to 2 MB."""

MOST = 2 * 1024 * 1024
"""Bytes of a body that is looked at: to remember this takes 2 ms. A longer one is parsed whole and not remembered."""

HASHED = 512
"""Bytes before each place that are hashed, and at the beginning. All are compared where a body is found."""

CHAIN = 16
"""Beginnings that are compared one after the other at most: each has only the bytes behind the one before it. For the
next one, the last of these is made anew, with all bytes."""

OVERHEAD = 600
"""Bytes of a beginning beside its text and its list of messages."""

LISTED = 8
"""Bytes of a message in such a list. Each beginning has its own one."""

CONTAINER, QUOTE, COMMA = 132, 26, 36
"""Bytes that are counted of parsed JSON for each of these, beside its letters. An object with one key takes 184, a text
50 to 80, a number 24 to 32, and each value 8 in the list that holds it."""

ESCAPE = re.compile(rb"\\u")
"""Looked for with a third of the time of ``bytes.count``."""

WIDE = (b"\\ud", b"\\uD")
"""How an escaped letter begins of which one is enough for all letters of a text to take four bytes, as ``str`` does."""

BLANK = b" \t\n\r"

_RAWS = msgspec.json.Decoder(list[msgspec.Raw])


class _Prefix:
    """``tail``: the bytes from ``start`` to ``size``; those before are in ``before``. ``opens``: where the list of
    messages begins. ``weight``: of the bytes from there on, as of ``bounds.weigh``. ``parsed``: bytes of memory of
    their values. ``depth``: how many are compared with this one. ``cost``: bytes of memory that it adds to ``before``.
    ``total``: those of all that are compared. ``generation``: the one in which it was counted last."""

    __slots__ = (
        *("before", "cost", "depth", "generation", "known", "opens", "parsed"),
        *("size", "start", "tail", "total", "weight"),
    )

    before: _Prefix | None
    depth: int
    known: KnownMessages
    parsed: int
    size: int
    total: int
    weight: tuple[int, int, int]

    def __init__(self, before: _Prefix | None, raw: bytes, opens: int, size: int, known: KnownMessages) -> None:
        """``raw``: a body whose first ``size`` bytes these are."""
        first = opens + 1 if before is None else before.size
        added = raw[first:size]
        weight = bounds.weigh(added)
        parsed = _parsed(added, weight)
        self.before = before
        self.opens, self.size, self.known = opens, size, known
        self.weight = weight if before is None else bounds.sum_of(before.weight, weight)
        self.parsed = parsed if before is None else before.parsed + parsed
        self.depth = 1 if before is None else before.depth + 1
        self.start = 0 if before is None else first
        self.tail = raw[:size] if before is None else added
        self.cost = OVERHEAD + len(self.tail) + parsed + LISTED * len(known.messages)
        self.total = self.cost if before is None else before.total + self.cost
        self.generation = 0

    def whole(self, raw: bytes) -> _Prefix:
        """The same one with all of its bytes, so that those before it may be dropped, except for their lists."""
        one = _Prefix.__new__(_Prefix)
        one.before, one.depth, one.start, one.generation = None, 1, 0, 0
        one.opens, one.size, one.known = self.opens, self.size, self.known
        one.weight, one.parsed, one.tail = self.weight, self.parsed, raw[: self.size]
        one.cost = OVERHEAD + len(one.tail) + one.parsed
        known: KnownMessages | None = one.known
        while known is not None:
            one.cost += LISTED * len(known.messages)
            known = known.before
        one.total = one.cost
        return one


def _parsed(raw: bytes, weight: tuple[int, int, int]) -> int:
    """About how many bytes the parsed values of ``raw`` take, which weighs ``weight``."""
    text = raw.decode()
    size = sys.getsizeof(text)
    if ESCAPE.search(raw):
        escapes = raw.count(b"\\u")
        width = 4 if any(one in raw for one in WIDE) else 2
        size = max(size, width * (len(text) - 5 * escapes))
    containers, quotes, commas = weight
    return size + CONTAINER * containers + QUOTE * quotes + COMMA * commas


class KnownChat(NamedTuple):
    """A chat. ``known``: the first of its ``messages``."""

    body: JsonBody
    known: KnownMessages
    messages: Sequence[Mapping[str, Any]]


class KnownChats:
    """``memory``: bytes. ``least``, ``step``: as ``LEAST`` and ``STEP``. For one event loop. It takes chats with bodies
    in UTF-8 of ``least`` to ``MOST`` bytes."""

    def __init__(self, memory: int = MEMORY, least: int = LEAST, step: int = STEP) -> None:
        self.least = least
        self._step = step
        self._places = tuple(accumulate(repeat(least, CHECKPOINTS), lambda place, _: int(place * GROWTH)))
        self._most = memory // 2
        self._share = memory // SHARE
        self._mark = b'"' + secrets.token_hex(16).encode() + b'"'
        self._latest: dict[int, _Prefix] = {}  # by the hash of the bytes up to a place
        self._older: dict[int, _Prefix] = {}
        self._generation = 1
        self.size = 0
        """Bytes of the younger generation."""

    def read(self, raw: bytes, settings: PassThroughSettings) -> KnownChat | None:
        """The chat in a body with a known beginning; None: parse it whole. What is new of it is remembered."""
        hashes = self._hashes(raw)
        found = self._find(raw, hashes)
        if found is None:
            return None
        short = b"".join((raw[: found.opens + 1], self._mark, raw[found.size :]))
        if not bounds.is_light(bounds.sum_of(found.weight, bounds.weigh(short))):
            return None
        try:
            body = JsonBody(short, settings)
            given = bytes(body.fields.get("messages", b""))
            opening = b"[" + self._mark
            if not given.startswith(opening):
                return None
            # Behind the mark is nothing, or a comma and messages: else it were no JSON.
            rest = MESSAGES.decode(b"[" + given[len(opening) :].lstrip(BLANK + b","))
        except (GatewayError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None
        end = found.size + len(given) - len(opening)
        body.lengthen(raw, "messages", memoryview(raw)[found.opens : end])
        messages = [*found.known.messages, *rest]
        if found.generation != self._generation:
            self._keep(found, hashes)
        if end - found.size > self._step:
            self._remember(raw, hashes, found, found.opens, end, messages)
        return KnownChat(body, found.known, messages)

    def add(self, raw: bytes, fields: Fields, messages: Sequence[Mapping[str, Any]]) -> None:
        """Remember a body that was parsed whole. ``messages``: the value of ``fields["messages"]``."""
        given = bytes(fields["messages"])
        opens = raw.find(given[:HASHED])
        if opens < 0 or not raw.startswith(given, opens) or not bounds.is_light(bounds.weigh(raw)):
            return
        hashes = self._hashes(raw)
        found = self._find(raw, hashes)
        if found is None or found.opens != opens:
            self._remember(raw, hashes, None, opens, opens + len(given), messages)

    def _find(self, raw: bytes, hashes: list[int]) -> _Prefix | None:
        """The longest known beginning of ``raw``, as far as the places know it."""
        ones: list[_Prefix] = []
        for number in hashes:
            latest, older = self._latest.get(number), self._older.get(number)
            if latest is None and older is None:
                break
            ones += [one for one in (older, latest) if one is not None]
        while ones:
            one: _Prefix | None = ones.pop()
            found = None
            while one is not None:
                found = (found or one) if raw.startswith(one.tail, one.start) else None
                one = one.before
            if found is not None:
                return found
        return None

    def _remember(
        self,
        raw: bytes,
        hashes: list[int],
        before: _Prefix | None,
        opens: int,
        end: int,
        messages: Sequence[Mapping[str, Any]],
    ) -> None:
        """Remember what is behind ``before``: up to the last message but one, since the last is often another one, and
        up to the last one if it is long. If nothing is known, the first message, too. ``end``: of the list."""
        first = opens + 1 if before is None else before.size
        inner = raw[first : end - 1].strip(BLANK + b",")
        sizes = [memoryview(one).nbytes for one in _RAWS.decode(b"[" + inner + b"]")]
        start = raw.index(inner[:1], first)
        last = start + len(inner)
        ends = {len(messages): last}
        if len(sizes) > 1:
            ends[len(messages) - 1] = len(raw[start : last - sizes[-1]].rstrip(BLANK + b",")) + start
            if before is None:
                ends[1] = start + sizes[0]
        for count, size in sorted(ends.items()):
            if size >= self.least and (before is None or size - before.size >= self._step):
                if before is not None and before.depth >= CHAIN:
                    before = before.whole(raw)
                    if before.total > self._share:
                        return
                    self._keep(before, hashes)
                known = KnownMessages(messages[:count], None if before is None else before.known)
                before = _Prefix(before, raw, opens, size, known)
                if before.total > self._share:
                    return
                self._keep(before, hashes)

    def _keep(self, one: _Prefix, hashes: list[int]) -> None:
        """``one`` is what came last to the last place that it reaches, of those of ``hashes``."""
        counted: _Prefix | None = one
        while counted is not None and counted.generation != self._generation:
            counted.generation = self._generation
            self.size += counted.cost
            counted = counted.before
        last = hashes[0]
        for number, place in zip(hashes, self._places, strict=False):
            if place > one.size:
                break
            last = number
            self._latest.setdefault(number, one)
        self._latest[last] = one
        if self.size > self._most:
            self._older, self._latest, self.size = self._latest, {}, 0
            self._generation += 1

    def _hashes(self, raw: bytes) -> list[int]:
        """Of its first bytes, and some before each place that the body reaches."""
        size, found, number = len(raw), [], xxh3_64_intdigest(raw[: min(HASHED, self.least)])
        for place in self._places:
            if place > size:
                break
            number = xxh3_64_intdigest(raw[max(0, place - HASHED) : place], number)
            found.append(number)
        return found
