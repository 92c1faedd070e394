"""One stream of log lines, in one format: our own through structlog, and whatever uses ``logging`` (aiohttp, asyncio).

JSON lines are for machines: ``time`` (ISO 8601, UTC), ``level``, ``event``, then the fields. Text is for people: the
same, on one line each, coloured on a terminal. Other people's loggers are heard from WARNING on, since their debug
lines hold requests and headers.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any, BinaryIO

import orjson
import structlog
from structlog.typing import EventDict, FilteringBoundLogger, Processor

from gateway.framework import Clock, SystemClock
from gateway.observability.plain_lines import Plain, PlainLines, printable
from gateway.observability.redaction import Redaction
from gateway.observability.settings import LogSettings
from gateway.observability.writer import LineWriter

# Fields of plain lines that are another value in each of them: what a client names its request, and what befell it.
FREE = ("request_id", "error")


class Logs:
    """What ``configure`` set up. ``close`` writes what is left and takes it away again.

    ``make``: gives the logger of a level. ``redacting``: its step that masks secrets. ``plain``: composes lines without
    that logger; None: they are coloured, and nobody waits for them.
    """

    def __init__(
        self,
        make: Callable[[int], FilteringBoundLogger],
        writer: LineWriter,
        level: int,
        redacting: Redaction,
        plain: PlainLines | None,
    ) -> None:
        self.logger = make(level)
        self.level = level
        self._make = make
        self._writer = writer
        self._redacting = redacting
        self._plain = plain
        self._bridge = Bridge(self.logger)
        self._root = logging.getLogger()
        self._ours = logging.getLogger("kvgate")
        self._before = (self._root.level, self._ours.level)
        self._root.addHandler(self._bridge)
        self._set_level(level)

    def change(self, level: str, secrets: Iterable[str]) -> None:
        """Another level, and more to mask; ``logger`` is another one from then on."""
        self._redacting.learn(secrets)
        if self._plain is not None:
            self._plain.forget()
        self.level = _number(level)
        self.logger = self._bridge.logger = self._make(self.level)
        self._set_level(self.level)

    def plain(self, level: int, event: str, fields: dict[str, Plain]) -> None:
        """A line of which there are thousands a second. Whoever writes it has seen that ``level`` is in force, before
        it gathered the fields; they are used up. Their names, and ``event``, are the code's own."""
        if self._plain is not None:
            self._plain.write(level, event, fields)
        else:
            self.logger.log(level, event, **fields)

    def _set_level(self, level: int) -> None:
        self._root.setLevel(max(level, logging.WARNING))
        self._ours.setLevel(level)

    def close(self) -> None:
        if self._bridge in self._root.handlers:
            self._root.removeHandler(self._bridge)
            root_level, our_level = self._before
            self._root.setLevel(root_level)
            self._ours.setLevel(our_level)
        self._writer.close()


class Bridge(logging.Handler):
    """``logging``'s records as lines of ours."""

    def __init__(self, logger: FilteringBoundLogger) -> None:
        super().__init__()
        self.logger = logger

    def emit(self, record: logging.LogRecord) -> None:
        try:
            fields: dict[str, Any] = {"logger": record.name}
            if record.exc_info:
                fields["exc_info"] = record.exc_info
            # structlog knows the five levels of the standard; whatever lies between counts as the one below it.
            level = max(logging.DEBUG, min(record.levelno // 10 * 10, logging.CRITICAL))
            self.logger.log(level, record.getMessage(), **fields)
        except Exception:
            self.handleError(record)  # a message that does not fit its arguments: shown on stderr, never raised


def configure(
    settings: LogSettings,
    *,
    stream: BinaryIO | None = None,
    clock: Clock | None = None,
    secrets: Iterable[str] = (),
) -> Logs:
    """Route all logging to ``stream`` (default: stderr, so that a command's own output stays clean on stdout).

    ``secrets``: the configured keys, masked wherever they turn up; keys are also recognised by name and by shape.
    """
    stream = stream or sys.stderr.buffer
    level = _number(settings.level)
    redacting = Redaction(secrets)
    stamp = _Stamp(clock or SystemClock())
    text = settings.format == "text"
    processors: list[Processor] = [
        structlog.processors.format_exc_info,
        redacting,
        stamp,
        _text_renderer(stream) if text else _render_json,
    ]

    def dropped(count: int) -> bytes:
        event: Any = {"event": f"{count} log lines dropped: their reader is too slow"}
        for processor in processors:
            event = processor(None, "warning", event)
        return bytes(event) + b"\n"

    writer = LineWriter(stream, dropped)
    output = _Output(writer)

    def logger(level: int) -> FilteringBoundLogger:
        wrapper = structlog.make_filtering_bound_logger(level)
        made: FilteringBoundLogger = structlog.wrap_logger(output, processors=processors, wrapper_class=wrapper)
        return made

    coloured = text and stream.isatty()
    plain = None if coloured else PlainLines(writer.write, stamp.now, redacting, text=text, free=FREE)
    return Logs(logger, writer, level, redacting, plain)


def _number(level: str) -> int:
    return logging.getLevelNamesMapping()[level.upper()]


class _Output:
    """Where the logger's lines go. From a warning on they are not to wait for others."""

    def __init__(self, writer: LineWriter) -> None:
        self._writer = writer

    def info(self, line: bytes) -> None:
        self._writer.write(line + b"\n")

    debug = info

    def warning(self, line: bytes) -> None:
        self._writer.write(line + b"\n", now=True)

    error = critical = warning


class _Stamp:
    """Puts time, level and event before the other fields."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._second = -1
        self._text = ""

    def now(self) -> str:
        """ISO 8601, in milliseconds. Up to the seconds it is made once for each."""
        wall = self._clock.wall()
        second = int(wall)
        if second != self._second:
            self._second, self._text = (
                second,
                datetime.fromtimestamp(second, UTC).isoformat()[: len("2026-11-21T09:30:00")],
            )
        return f"{self._text}.{int((wall - second) * 1000):03d}Z"

    def __call__(self, logger: object, method: str, event: EventDict) -> EventDict:
        head = {"time": self.now(), "level": method, "event": event.pop("event")}
        return head | dict(event)


def _render_json(logger: object, method: str, event: EventDict) -> bytes:
    try:
        return orjson.dumps(event)
    except TypeError:  # a lone surrogate: a client's broken text inside a message
        return orjson.dumps({name: _printable(value) for name, value in event.items()})


def _text_renderer(stream: BinaryIO) -> Processor:
    console = structlog.dev.ConsoleRenderer(
        colors=stream.isatty(),
        pad_event_to=0,
        sort_keys=False,
        timestamp_key="time",
        # Rich tracebacks show local variables: prompts, and keys.
        exception_formatter=structlog.dev.plain_traceback,
    )

    def render(logger: Any, method: str, event: EventDict) -> bytes:
        # A client's text may stand in a message. A line break in it would let a client write our log.
        shown = {name: _printable(value) for name, value in event.items()}
        if "exception" in event:
            shown["exception"] = "\n".join(_printable(line) for line in str(event["exception"]).split("\n"))
        return console(logger, method, shown).encode("utf-8", "backslashreplace")

    return render


def _printable(value: Any) -> Any:
    return printable(value) if isinstance(value, str) else value
