"""Our own lines: an event and fields, which become one line each. The library for this imports ``rich`` and more, which
is a twelfth of a start.

A line goes through these steps: a given exception becomes its traceback, secrets are masked, time and level are put
before, and it is made JSON or text.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, TypeAlias

from gateway.observability.line_composer import printable, quoted

Fields: TypeAlias = Mapping[str, Any]
"""Of a line, by name, with its ``event``."""

Raised: TypeAlias = BaseException | tuple[type[BaseException] | None, BaseException | None, TracebackType | None]
"""An exception, or the three of ``sys.exc_info``."""

PLAIN, DIM, BOLD = "\x1b[0m", "\x1b[2m", "\x1b[1m"
CYAN, MAGENTA, BLUE = "\x1b[36m", "\x1b[35m", "\x1b[34m"
GREEN, YELLOW, RED = "\x1b[32m", "\x1b[33m", "\x1b[31m"
COLOURS = {"debug": GREEN, "info": GREEN, "warning": YELLOW, "error": RED, "critical": RED}
"""What a terminal shows a level's name in."""


class Logger:
    """Writes lines from ``level`` on, by the numbers of ``logging``. ``write``: takes a level's name and the fields.
    The field ``exc_info`` is an exception, whose traceback is shown."""

    def __init__(self, level: int, write: Callable[[str, Fields], None]) -> None:
        self._level = level
        self._write = write

    def log(self, level: int, event: str, **fields: Any) -> None:
        """``level``: one of the five standard ones."""
        if level >= self._level:
            self._write(logging.getLevelName(level).lower(), {"event": event, **fields})

    def debug(self, event: str, **fields: Any) -> None:
        self.log(logging.DEBUG, event, **fields)

    def info(self, event: str, **fields: Any) -> None:
        self.log(logging.INFO, event, **fields)

    def warning(self, event: str, **fields: Any) -> None:
        self.log(logging.WARNING, event, **fields)

    def error(self, event: str, **fields: Any) -> None:
        self.log(logging.ERROR, event, **fields)


def with_traceback(fields: Fields) -> Fields:
    """The same with ``exception``, a text, in place of ``exc_info``. No values of variables: prompts, and keys."""
    if "exc_info" not in fields:
        return fields
    fields = dict(fields)
    raised: Raised = fields.pop("exc_info")
    error = raised if isinstance(raised, BaseException) else raised[1]
    if error is not None:
        fields["exception"] = "".join(traceback.format_exception(error)).removesuffix("\n")
    return fields


def text_line(fields: Fields, *, coloured: bool) -> bytes:
    """A line for people, without its end: ``time``, ``level``, ``event``, the ``logger`` in brackets, then the other
    fields, and an ``exception`` below."""
    # A message may contain a client's text. A line break in it would let the client write lines of our log.
    shown = {name: printable(value) for name, value in fields.items() if name != "exception"}
    level, logger = shown.pop("level"), shown.pop("logger", None)
    parts = [
        _in(coloured, shown.pop("time"), DIM),
        f"[{_in(coloured, f'{level:<9}', COLOURS[level], BOLD)}]",
        _in(coloured, str(shown.pop("event")), BOLD),
    ]
    if logger is not None:
        parts.append(f"[{_in(coloured, logger, BLUE, BOLD)}]")
    for name, value in shown.items():
        parts.append(f"{_in(coloured, name, CYAN)}={_in(coloured, quoted(value), MAGENTA)}")
    text = " ".join(parts)
    if "exception" in fields:
        text = "\n".join([text, *(printable(line) for line in str(fields["exception"]).split("\n"))])
    return text.encode("utf-8", "backslashreplace")


def _in(coloured: bool, text: str, *styles: str) -> str:
    return f"{''.join(styles)}{text}{PLAIN}" if coloured else text
