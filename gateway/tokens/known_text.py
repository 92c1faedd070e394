"""Texts of known messages: where a chat begins with them, and its template allows it (``message_loop``), only what is
behind them is rendered.

Rules: a text belongs to the very messages that it was made of (``KnownMessages``), to one compiled template, and to all
that was compared when it was made. It keeps them not alive, and goes with them. Bounded in bytes, the least recently
used is dropped first. May be used from any thread.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from operator import is_
from sys import getsizeof
from typing import Any, NamedTuple, TypeAlias
from weakref import ref

from jinja2 import Undefined
from jinja2.runtime import Context

from gateway.core.prompt import KnownMessages
from gateway.tokens.message_loop import BACK, BEGIN, END, SplitTemplate

MEMORY = 32 * 1024 * 1024
"""Bytes of all texts of one model."""

OVERHEAD = 500
"""Bytes of a text beside its letters and its messages."""

PER_MESSAGE = 300
"""Bytes of a converted message without its values: those that are the known one's are in memory once, and others, such
as the arguments of tool calls, count by themselves."""

OPENINGS = 4
"""Texts of the same messages: for applications that have a system prompt in common, and other tools each."""

_PLAIN = frozenset({str, int, bool, type(None)})
"""Types of values that are the same if they are equal, and of one type."""

Values: TypeAlias = tuple[tuple[type, Any], ...]


class KnownText(NamedTuple):
    """``text``: up to the message ``until`` of the loop, which begins ``front`` messages behind the chat's first.

    ``opening``: what is before the loop's first. ``values``, ``numbers``: what the loop has read from outside.
    ``conversation``: the messages, converted. ``weight``: bytes of these. ``size``: of all.
    """

    split: SplitTemplate
    text: str
    until: int
    front: int
    opening: str
    values: Values
    numbers: tuple[int, ...]
    conversation: list[dict[str, Any]]
    weight: int
    size: int

    def is_of(self, other: KnownText) -> bool:
        """Whether both are of the same messages behind the same opening, if they are of the same ``KnownMessages``."""
        return (self.split, self.front, self.opening, self.values) == (
            other.split,
            other.front,
            other.opening,
            other.values,
        )


class KnownTexts:
    """Of one model. ``memory``: bytes. Of each messages the latest text is the first."""

    def __init__(self, memory: int = MEMORY) -> None:
        self.size = 0
        self._memory = memory
        self._texts: OrderedDict[ref[KnownMessages], tuple[KnownText, ...]] = OrderedDict()
        self._gone: deque[ref[KnownMessages]] = deque()
        """Messages that are no more, while a thread had the lock."""
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """How many messages have a text."""
        return len(self._texts)

    def find(self, known: KnownMessages, split: SplitTemplate) -> list[KnownText]:
        """The texts of the longest beginning of ``known`` that has one with this template."""
        with self._lock:
            if self._gone:
                self._drop_gone()
            one: KnownMessages | None = known
            while one is not None:
                key = ref(one)
                if found := [text for text in self._texts.get(key, ()) if text.split is split]:
                    self._texts.move_to_end(key)
                    return found
                one = one.before
        return []

    def keep(self, known: KnownMessages, text: KnownText) -> None:
        with self._lock:
            others = [other for other in self._texts.get(ref(known), ()) if not other.is_of(text)]
            self._drop(ref(known))
            texts = (text, *others[: OPENINGS - 1])
            self._texts[ref(known, self._forget)] = texts
            self.size += sum(one.size for one in texts)
            self._drop_gone()
            while self.size > self._memory:
                self._drop(next(iter(self._texts)))

    def _forget(self, known: ref[KnownMessages]) -> None:
        """Called where the messages' last reference goes, in any thread, perhaps in one that has the lock."""
        self._gone.append(known)
        if self._lock.acquire(blocking=False):
            try:
                self._drop_gone()
            finally:
                self._lock.release()

    def _drop_gone(self) -> None:
        while self._gone:
            self._drop(self._gone.popleft())

    def _drop(self, known: ref[KnownMessages]) -> None:
        self.size -= sum(text.size for text in self._texts.pop(known, ()))


class NotKnown(Exception):
    """More of a chat would have to be rendered than what is behind its known messages."""


class KnownRendering:
    """One chat. ``known``: its first messages. ``found``: texts that are known of them. ``conversation``: its messages,
    converted, of which the first are those of the first text of ``found``. ``whole``: it may have to be rendered whole,
    since none of these texts goes on from what is before the loop; else NotKnown is raised there."""

    def __init__(
        self,
        texts: KnownTexts,
        split: SplitTemplate,
        known: KnownMessages,
        found: Sequence[KnownText],
        conversation: list[dict[str, Any]],
        *,
        whole: bool = True,
    ) -> None:
        self._texts = texts
        self._split = split
        self._known = known
        self._candidates = found
        self._conversation = conversation
        self._whole = whole
        self._found: KnownText | None = None
        """What the chat's text begins with."""
        self._pieces: list[str] = []
        self._behind = 0
        """Pieces before the loop."""
        self._new: KnownText | None = None
        """What will be known, still without its text."""

    def text(self, variables: Mapping[str, Any]) -> str:
        """The chat's. May raise any exception, as a template can."""
        template, pieces = self._split.template, self._pieces
        given = {**template.globals, **variables, BEGIN: self._begin, END: self._end, BACK: self._back}
        for piece in template.root_render_func(Context(template.environment, given, template.name, template.blocks)):
            pieces.append(piece)
        return "".join(pieces) if self._found is None else self._found.text + "".join(pieces[self._behind :])

    def _begin(self, messages: Any, values: tuple[Any, ...], numbers: tuple[Any, ...]) -> tuple[int, int]:
        """The loop over ``messages`` begins: from where on it is to be run, and how far its text will be known."""
        front = len(self._conversation) - len(messages) if type(messages) is list else -1
        named = tuple([(Undefined, None) if isinstance(one, Undefined) else (type(one), one) for one in values])
        if (
            front < 0
            or not all(map(is_, messages, self._conversation[front:]))
            or not all(kind in _PLAIN or kind is Undefined for kind, _ in named)
            or not all(type(one) is int for one in numbers)
        ):
            if not self._whole:
                raise NotKnown
            return 0, 0
        self._behind, opening = len(self._pieces), "".join(self._pieces)
        until = max(0, len(self._known.messages) - front - self._split.ahead)
        for one in self._candidates:
            if (one.front, one.opening, one.values) == (front, opening, named) and all(
                map(_same_order, numbers, one.numbers, [one.until] * len(numbers))
            ):
                self._found = one
                break
        if self._found is None and not self._whole:
            raise NotKnown
        start = 0 if self._found is None else self._found.until
        if until > start:
            known = self._conversation[: len(self._known.messages)]
            self._new = KnownText(self._split, "", until, front, opening, named, numbers, known, 0, 0)
        return start, max(start, until)

    def _end(self) -> None:
        """The loop has come to where its text will be known up to."""
        if (new := self._new) is not None:
            before = new.opening if self._found is None else self._found.text
            text = before + "".join(self._pieces[self._behind :])
            weight = self._weight(new.conversation)
            size = OVERHEAD + getsizeof(text) + getsizeof(new.opening) + weight
            self._texts.keep(self._known, new._replace(text=text, weight=weight, size=size))

    def _weight(self, conversation: Sequence[Mapping[str, Any]]) -> int:
        """Bytes of the first messages, converted."""
        of_text = self._candidates[0] if self._candidates else None
        done, weight = (0, 0) if of_text is None else (len(of_text.conversation), of_text.weight)
        messages = self._known.messages
        for place in range(done, len(conversation)):
            given = messages[place]
            weight += PER_MESSAGE + _size(
                one for name, one in conversation[place].items() if one is not given.get(name)
            )
        return weight

    def _back(self, place: int) -> int:
        """The loop reads the message at ``place``. Before the first one is the last of all, which is another one in
        another chat."""
        if place < 0:
            self._new = None
        return place


def _same_order(number: int, other: int, places: int) -> bool:
    """Whether both are in the same order with each of the first ``places``."""
    return number == other or (number >= places and other >= places)


def _size(values: Iterable[Any]) -> int:
    """Bytes of parsed JSON, of any depth."""
    size, left = 0, list(values)
    while left:
        one = left.pop()
        size += getsizeof(one)
        if isinstance(one, dict):
            left += one.keys()
            left += one.values()
        elif isinstance(one, list | tuple):
            left += one
    return size
