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
        self._text = text
        self._free = frozenset(free)
        self._shown = _Shown(self._show)

    def forget(self) -> None:
        """There is more to mask."""
        self._shown.clear()

    def write(self, level: int, event: str, fields: dict[str, Plain]) -> None:
        """``fields`` are changed to what is shown."""
        shown, free, show = self._shown, self._free, self._show
        for name, value in fields.items():
            if type(value) is str:
                fields[name] = show(value) if name in free else shown[value]
        word = _WORDS[level]
        if self._text:
            pairs = " ".join([f"{name}={value}" for name, value in fields.items()])
            line = f"{self._now()} [{word:<9}] {event} {pairs}\n".encode("utf-8", "backslashreplace")
        else:
            head = f'{{"time":"{self._now()}","level":"{word}","event":"{event}",'.encode()
            line = head + _json(fields)[1:]
        self._write(line)

    def _show(self, value: str) -> str:
        """As it may stand in a line: masked, and never with a line break."""
        value = self._redaction.text(value)
        if self._text:
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


def _json(fields: dict[str, Plain]) -> bytes:
    try:
        return orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE)
    except TypeError:  # a lone surrogate: a client's broken text
        shown = {name: printable(value) if isinstance(value, str) else value for name, value in fields.items()}
        return orjson.dumps(shown, option=orjson.OPT_APPEND_NEWLINE)


def printable(value: str) -> str:
    """A line break in a client's text would let a client write our log."""
    return value if value.isprintable() else value.encode("unicode_escape").decode("ascii")
