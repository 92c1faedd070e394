"""Beginnings of chats that are remembered by their bytes: what was parsed there before is not parsed again.

A conversation's next turn begins with the bytes of the turn before it, and the chats of one application begin with the
same system prompt. To compare 128 KB takes 2 us, and to parse them 60.

Why the result is that of the whole body: a beginning ends behind a message of a body that was parsed. In a body that
begins so, a parser is in the same state there. So the body is parsed with a mark in the place of the known messages. No
client knows the mark, so that it is nowhere else: if it is then found as the first message, those in its place are the
first messages of this body. In any other case, an error included, the body is parsed whole.

Rules: texts are compared in full. Bounded in bytes: there are two generations, of which the older is dropped when the
younger is full. Only chats in OpenAI's form are remembered, and only those of ``LEAST`` bytes.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from itertools import accumulate, repeat
from typing import Any, NamedTuple

import msgspec
from xxhash import xxh3_64_intdigest

from gateway.api import bounds
from gateway.api.body import JsonBody
from gateway.api.field_filter import Fields
from gateway.api.settings import PassSettings
from gateway.core.prompt import KnownMessages
from gateway.errors import GatewayError

LEAST = 16 * 1024
"""Bytes of a beginning that is remembered. To parse so many takes as long as to find it."""

STEP = 4096
"""Bytes behind a beginning from which on another one is remembered, and not parsed each time."""

MEMORY = 64 * 1024 * 1024
"""Bytes of all beginnings together, their parsed messages included."""

FURTHER = 4 / 3
"""Factor from one place, at which some bytes are hashed, to the next. At each place the latest body is known that has
these bytes. If that one goes on differently, at most a quarter of the known bytes is not found."""

PLACES = 18
"""Up to 2 MB."""

MOST = 2 * 1024 * 1024
"""Bytes of a body that is looked at, or else parsed whole and not remembered: to remember this takes 2 ms."""

HASHED = 512
"""Bytes before each place that are hashed, and at the beginning. All are compared where a body is found."""

CHAIN = 16
"""Beginnings that are compared one after the other at most: each has only the bytes behind the one before it. The next
one has all bytes again."""

OVERHEAD = 600
"""Bytes of a beginning beside its text and its list of messages."""

COPIES = 3
"""A beginning's bytes count three times: as bytes, and as parsed texts, whose letters may take two bytes each."""

BLANK = b" \t\n\r"

_RAWS = msgspec.json.Decoder(list[msgspec.Raw])
_MESSAGES = msgspec.json.Decoder(list[dict[str, Any]])


class _Beginning:
    """``tail``: the bytes from ``start`` to ``size``; those before are in ``before``. ``opens``: where the list of
    messages begins. ``weight``: of the bytes from there on, as of ``bounds.weigh``. ``depth``: how many are compared
    with this one. ``generation``: the one in which it was counted last."""

    __slots__ = ("before", "depth", "generation", "known", "opens", "size", "start", "tail", "weight")

    before: _Beginning | None
    depth: int
    known: KnownMessages
    size: int
    weight: tuple[int, int, int]

    def __init__(
        self, before: _Beginning | None, raw: bytes, opens: int, size: int, messages: Sequence[Mapping[str, Any]]
    ) -> None:
        """``raw``: a body whose first ``size`` bytes these are."""
        first = opens + 1 if before is None else before.size
        weight = bounds.weigh(raw[first:size])
        self.known = KnownMessages(messages, None if before is None else before.known)
        self.weight = weight if before is None else bounds.sum_of(before.weight, weight)
        self.depth = 1 if before is None or before.depth >= CHAIN else before.depth + 1
        self.start = 0 if self.depth == 1 else first
        self.tail = raw[self.start : size]
        self.before = before
        self.opens = opens
        self.size = size
        self.generation = 0


class Turn(NamedTuple):
    """A chat whose first messages are ``known``. ``rest``: the messages behind them."""

    body: JsonBody
    known: KnownMessages
    rest: list[dict[str, Any]]

    @property
    def messages(self) -> list[Mapping[str, Any]]:
        return [*self.known.messages, *self.rest]


class KnownChats:
    """``memory``: bytes. ``least``, ``step``: as ``LEAST`` and ``STEP``. For one event loop."""

    def __init__(self, memory: int = MEMORY, least: int = LEAST, step: int = STEP) -> None:
        self.least = least
        self._step = step
        self._places = tuple(accumulate(repeat(least, PLACES), lambda place, _: int(place * FURTHER)))
        self._most = memory // 2
        self._mark = b'"' + secrets.token_hex(16).encode() + b'"'
        self._latest: dict[int, _Beginning] = {}  # by the hash of the bytes up to a place
        self._older: dict[int, _Beginning] = {}
        self._generation = 1
        self.size = 0
        """Bytes of the younger generation."""

    def read(self, raw: bytes, settings: PassSettings) -> Turn | None:
        """The chat in a body with a known beginning; None: parse it whole. What is new of it is remembered."""
        if len(raw) > MOST:
            return None
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
            rest = _MESSAGES.decode(b"[" + given[len(opening) :].lstrip(BLANK + b","))
        except (GatewayError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None
        end = found.size + len(given) - len(opening)
        body.lengthen(raw, "messages", memoryview(raw)[found.opens : end])
        turn = Turn(body, found.known, rest)
        if found.generation != self._generation:
            self._keep(found, hashes)
        if end - found.size > self._step:
            self._remember(raw, hashes, found, found.opens, end, turn.messages)
        return turn

    def add(self, raw: bytes, fields: Fields, messages: Sequence[Mapping[str, Any]]) -> None:
        """Remember a body that was parsed whole. ``messages``: the value of ``fields["messages"]``."""
        if len(raw) > MOST:
            return
        given = bytes(fields["messages"])
        opens = raw.find(given[:HASHED])
        if opens >= 0 and raw.startswith(given, opens):
            self._remember(raw, self._hashes(raw), None, opens, opens + len(given), messages)

    def _find(self, raw: bytes, hashes: list[int]) -> _Beginning | None:
        """The longest known beginning of ``raw``, as far as the body knows it that came last to the same place."""
        one: _Beginning | None = None
        for number in hashes:
            known = self._latest.get(number) or self._older.get(number)
            if known is None:
                break
            one = known
        found = None
        while one is not None:
            if raw.startswith(one.tail, one.start):
                found = found or one
                if not one.start:
                    break
            else:
                found = None
            one = one.before
        return found

    def _remember(
        self,
        raw: bytes,
        hashes: list[int],
        before: _Beginning | None,
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
                before = _Beginning(before, raw, opens, size, messages[:count])
                self._keep(before, hashes)

    def _keep(self, one: _Beginning, hashes: list[int]) -> None:
        """``one`` is what came last to the last place that it reaches, of those of ``hashes``."""
        counted: _Beginning | None = one
        while counted is not None and counted.generation != self._generation:
            counted.generation = self._generation
            self.size += OVERHEAD + 8 * len(counted.known.messages) + COPIES * len(counted.tail)
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
