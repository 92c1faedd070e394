"""Lines of plain fields, composed at once: a request's takes about 8 us, and by the logger's chain of steps 30 as JSON
and 90 as text. They look the same, which a test holds.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection
from typing import TypeAlias

import orjson

from gateway.observability.redaction import Redaction

Plain: TypeAlias = str | int | float | bool

# Strings whose shown form is remembered: models, endpoints, routes and words of the code. Far more than there are; what
# else may come to stand in a line makes them be learnt again, and no more.
_MAX_KNOWN = 4096

# As the console's renderer has it: what stands between fields, or begins a quotation, is quoted.
_QUOTED = re.compile(r"""[ \t=\r\n"']""")


_WORDS = {logging.DEBUG: "debug", logging.INFO: "info", logging.WARNING: "warning", logging.ERROR: "error"}


class PlainLines:
    """``write``: takes a line with its end. ``now``: gives the time as text.

    ``text``: whether lines are for people, else JSON. ``free``: names of fields whose values are not remembered, being
    another one in each line. Names are the code's own, and none is a secret's.
    """

    def __init__(
        self,
        write: Callable[[bytes], object],
        now: Callable[[], str],
        redaction: Redaction,
        *,
        text: bool,
        free: Collection[str] = (),
    ) -> None:
        self._write = write
        self._now = now
        self._redaction = redaction
        self._for_people = text
        self._free = frozenset(free)
        self._shown = _Shown(self._show)

    def forget(self) -> None:
        """There is more to mask."""
        self._shown.clear()

    def write(self, level: int, event: str, fields: dict[str, Plain]) -> None:
        """``fields`` are changed to what is shown."""
        self._write(self._text(level, event, fields) if self._for_people else self._json(level, event, fields))

    def _text(self, level: int, event: str, fields: dict[str, Plain]) -> bytes:
        parts = [f"{self._now()} [{_WORDS[level]:<9}] {event}"]
        shown, free, show = self._shown, self._free, self._show
        for name, value in fields.items():
            if type(value) is str:
                value = show(value) if name in free else shown[value]
            parts.append(f"{name}={value}")
        return (" ".join(parts) + "\n").encode("utf-8", "backslashreplace")

    def _json(self, level: int, event: str, fields: dict[str, Plain]) -> bytes:
        shown, free, show = self._shown, self._free, self._show
        for name, value in fields.items():
            if type(value) is str:
                fields[name] = show(value) if name in free else shown[value]
        try:
            body = orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE)
        except TypeError:  # a lone surrogate: a client's broken text
            escaped = {name: printable(value) if isinstance(value, str) else value for name, value in fields.items()}
            body = orjson.dumps(escaped, option=orjson.OPT_APPEND_NEWLINE)
        return f'{{"time":"{self._now()}","level":"{_WORDS[level]}","event":"{event}",'.encode() + body[1:]

    def _show(self, value: str) -> str:
        """As it may stand in a line: masked, and never with a line break."""
        value = self._redaction.text(value)
        if self._for_people:
            value = printable(value)
            return repr(value) if _QUOTED.search(value) else value
        return value


class _Shown(dict[str, str]):
    """Strings by what they were made of."""

    def __init__(self, show: Callable[[str], str]) -> None:
        super().__init__()
        self._show = show

    def __missing__(self, value: str) -> str:
        if len(self) >= _MAX_KNOWN:
            self.clear()
        shown = self[value] = self._show(value)
        return shown


def printable(value: str) -> str:
    """A line break in a client's text would let a client write our log."""
    return value if value.isprintable() else value.encode("unicode_escape").decode("ascii")
