"""Log lines of plain fields, composed without structlog: a request's line takes about 8 us, and structlog's chain of
processors 30 as JSON and 90 as text. A test holds that both write the same bytes. The writer's thread composes them.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeAlias, TypeVar

import orjson

from gateway.observability.redaction import Redaction

PlainValue: TypeAlias = str | int | float | bool
T = TypeVar("T")

# Strings whose shown form is remembered: models, endpoints, routes and words of the code. Far more than there are; if
# other strings fill it, it begins anew.
_MAX_KNOWN = 4096

# As structlog's console renderer has it: a value is quoted if it holds what separates fields, or a quotation mark.
_QUOTED = re.compile(r"""[ \t=\r\n"']""")


_LEVELS = {logging.DEBUG: "debug", logging.INFO: "info", logging.WARNING: "warning", logging.ERROR: "error"}


NOTHING: Mapping[str, int] = {}


class LineComposer:
    """``time``: gives Clock.wall() as text. ``also``: fields that are in each line.

    ``text``: lines are text for people, else JSON. ``free``: names of fields that have another value in each line;
    these values are not remembered. Names of fields come from the code, and none of them is a secret's.
    """

    def __init__(
        self,
        time: Callable[[float], str],
        redaction: Redaction,
        *,
        text: bool,
        free: Collection[str] = (),
        also: Mapping[str, int] = NOTHING,
    ) -> None:
        self._time = time
        self._redaction = redaction
        self._for_people = text
        self._free = frozenset(free)
        self._also = also
        self._shown = _Shown(self._show)

    def clear_cache(self) -> None:
        """Mask all values again: there are more secrets. What a line that is composed now finds is not remembered."""
        self._shown = _Shown(self._show)

    def line(self, level: int, event: str, at: float, gather: Callable[[T], dict[str, PlainValue]], of: T) -> bytes:
        """A line with its end. ``level``: of ``logging``; the caller has checked it. ``event`` and the names of the
        fields come from the code. ``at``: Clock.wall(). ``gather``: gives the fields ``of`` something, in a dict of
        their own."""
        shown, free, fields, time = self._shown, self._free, gather(of), self._time(at)
        for name, value in fields.items():
            if type(value) is str:
                fields[name] = self._show(value) if name in free else shown[value]
        if self._also:
            fields = {**self._also, **fields}
        if not self._for_people:
            return as_json({"time": time, "level": _LEVELS[level], "event": event, **fields}) + b"\n"
        parts = [f"{time} [{_LEVELS[level]:<9}] {event}"]
        for name, value in fields.items():
            parts.append(f"{name}={value}")
        return (" ".join(parts) + "\n").encode("utf-8", "backslashreplace")

    def _show(self, value: str) -> str:
        """Masked, and in text without line breaks."""
        value = self._redaction.text(value)
        if self._for_people:
            value = printable(value)
            return repr(value) if _QUOTED.search(value) else value
        return value


class _Shown(dict[str, str]):
    """Shown forms by string."""

    def __init__(self, show: Callable[[str], str]) -> None:
        super().__init__()
        self._show = show

    def __missing__(self, value: str) -> str:
        if len(self) >= _MAX_KNOWN:
            self.clear()
        shown = self[value] = self._show(value)
        return shown


def as_json(fields: Mapping[str, Any]) -> bytes:
    try:
        return orjson.dumps(fields)
    except TypeError:  # a lone surrogate: a client's broken text
        return orjson.dumps({name: printable(value) for name, value in fields.items()})


def printable(value: Any) -> Any:
    """Text without line breaks and control characters: a client's text must not write lines of our log."""
    if not isinstance(value, str) or value.isprintable():
        return value
    return value.encode("unicode_escape").decode("ascii")
