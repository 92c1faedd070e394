"""Texts of known messages: where a chat begins with them, and its template allows it (``message_loop``), only what is
behind them is rendered.

Rules: a text belongs to the very messages that it was made of (``KnownMessages``), to one compiled template, and to all
that was compared when it was made. Bounded in bytes, the least recently used is dropped first. May be used from any
thread.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from operator import is_
from typing import Any, NamedTuple, TypeAlias

from jinja2 import Undefined
from jinja2.runtime import Context

from gateway.core.prompt import KnownMessages
from gateway.tokens.message_loop import BACK, BEGIN, END, SplitTemplate

MEMORY = 32 * 1024 * 1024
"""Bytes of all texts of one model."""

OVERHEAD = 500
"""Bytes of a text beside its letters and its messages."""

PER_MESSAGE = 300
"""Bytes of a converted message without its text, which the known one has, too."""

_PLAIN = frozenset({str, int, bool, type(None)})
"""Types of values that are the same if they are equal, and of one type."""

Values: TypeAlias = tuple[tuple[type, Any], ...]


class KnownText(NamedTuple):
    """``text``: up to the message ``until`` of the loop, which begins ``front`` messages behind the chat's first.

    ``opening``: what is before the loop's first. ``values``, ``numbers``: what the loop has read from outside.
    ``conversation``: the messages, converted.
    """

    split: SplitTemplate
    text: str
    until: int
    front: int
    opening: str
    values: Values
    numbers: tuple[int, ...]
    conversation: list[dict[str, Any]]


class KnownTexts:
    """Of one model. ``memory``: bytes."""

    def __init__(self, memory: int = MEMORY) -> None:
        self.size = 0
        self._memory = memory
        self._texts: OrderedDict[KnownMessages, KnownText] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._texts)

    def find(self, known: KnownMessages, split: SplitTemplate) -> KnownText | None:
        """The text of the longest beginning of ``known`` that has one."""
        with self._lock:
            one: KnownMessages | None = known
            while one is not None:
                text = self._texts.get(one)
                if text is not None and text.split is split:
                    self._texts.move_to_end(one)
                    return text
                one = one.before
        return None

    def count(self, known: KnownMessages) -> int:
        """How many of its messages have a text, with any template."""
        one: KnownMessages | None = known
        while one is not None and one not in self._texts:
            one = one.before
        return 0 if one is None else len(one.messages)

    def keep(self, known: KnownMessages, text: KnownText) -> None:
        with self._lock:
            self._drop(known)
            self._texts[known] = text
            self.size += _size(text)
            while self.size > self._memory:
                self._drop(next(iter(self._texts)))

    def _drop(self, known: KnownMessages) -> None:
        if (text := self._texts.pop(known, None)) is not None:
            self.size -= _size(text)


class KnownRendering:
    """One chat. ``known``: its first messages. ``found``: the text that is known of them, if any. ``conversation``: its
    messages, converted, of which the first are those of ``found``."""

    def __init__(
        self,
        texts: KnownTexts,
        split: SplitTemplate,
        known: KnownMessages,
        found: KnownText | None,
        conversation: list[dict[str, Any]],
    ) -> None:
        self._texts = texts
        self._split = split
        self._known = known
        self._found = found
        self._conversation = conversation
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
        found, self._found = self._found, None
        front = len(self._conversation) - len(messages) if type(messages) is list else -1
        named = tuple([(Undefined, None) if isinstance(one, Undefined) else (type(one), one) for one in values])
        if (
            front < 0
            or not all(map(is_, messages, self._conversation[front:]))
            or not all(kind in _PLAIN or kind is Undefined for kind, _ in named)
            or not all(type(one) is int for one in numbers)
        ):
            return 0, 0
        self._behind, opening = len(self._pieces), "".join(self._pieces)
        until = max(0, len(self._known.messages) - front - self._split.ahead)
        start = 0
        if (
            found is not None
            and (found.front, found.opening, found.values) == (front, opening, named)
            and all(map(_same_order, numbers, found.numbers, [found.until] * len(numbers)))
        ):
            self._found, start = found, found.until
        if until > start:
            known = self._conversation[: len(self._known.messages)]
            self._new = KnownText(self._split, "", until, front, opening, named, numbers, known)
        return start, max(start, until)

    def _end(self) -> None:
        """The loop has come to where its text will be known up to."""
        if (new := self._new) is not None:
            before = new.opening if self._found is None else self._found.text
            text = before + "".join(self._pieces[self._behind :])
            self._texts.keep(self._known, new._replace(text=text))

    def _back(self, place: int) -> int:
        """The loop reads the message at ``place``. Before the first one is the last of all, which is another one in
        another chat."""
        if place < 0:
            self._new = None
        return place


def _same_order(number: int, other: int, places: int) -> bool:
    """Whether both are in the same order with each of the first ``places``."""
    return number == other or (number >= places and other >= places)


def _size(text: KnownText) -> int:
    return OVERHEAD + len(text.text) + len(text.opening) + PER_MESSAGE * len(text.conversation)
