"""The log: our own lines through structlog, and those of libraries that use ``logging`` (aiohttp, asyncio).

JSON lines are for machines: ``time`` (ISO 8601, UTC), ``level``, ``event``, then the fields. Text is for people: the
same on one line each, coloured on a terminal. Lines of libraries are written from WARNING on, since their debug lines
contain requests and headers.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, BinaryIO

import structlog
from structlog.typing import EventDict, FilteringBoundLogger, Processor

from gateway.core.clock import SystemClock
from gateway.framework import Clock
from gateway.observability.line_composer import NOTHING, LineComposer, as_json, printable
from gateway.observability.redaction import Redaction
from gateway.observability.settings import LogSettings
from gateway.observability.writer import LineWriter

# Fields of a request's line that have another value in each of them: the client's id of it, and an error's text.
FREE = ("request_id", "error")


class Logs:
    """What ``configure`` set up, until ``close``.

    ``make``: gives the logger of a level. ``redacting``: the processor that masks secrets. ``composer``: makes lines of
    which there are thousands a second, in the thread of ``writer`` and without the logger; None: lines are coloured,
    and the logger writes all of them.
    """

    def __init__(
        self,
        make: Callable[[int], FilteringBoundLogger],
        writer: LineWriter,
        level: int,
        redacting: Redaction,
        composer: LineComposer | None,
    ) -> None:
        self.logger = make(level)
        self.level = level
        self._make = make
        self.writer = writer
        self.composer = composer
        self._redacting = redacting
        self._bridge = Bridge(self.logger)
        self._root = logging.getLogger()
        self._ours = logging.getLogger("kvgate")
        self._before = (self._root.level, self._ours.level)
        self._root.addHandler(self._bridge)
        self._set_level(level)

    def change(self, level: str, secrets: Iterable[str]) -> None:
        """Set another level, and mask ``secrets`` too. ``logger`` is another object afterwards."""
        self._redacting.learn(secrets)
        if self.composer is not None:
            self.composer.clear_cache()
        self.level = _number(level)
        self.logger = self._bridge.logger = self._make(self.level)
        self._set_level(self.level)

    def _set_level(self, level: int) -> None:
        self._root.setLevel(max(level, logging.WARNING))
        self._ours.setLevel(level)

    def close(self) -> None:
        if self._bridge in self._root.handlers:
            self._root.removeHandler(self._bridge)
            root_level, our_level = self._before
            self._root.setLevel(root_level)
            self._ours.setLevel(our_level)
        self.writer.close()


class Bridge(logging.Handler):
    """Writes ``logging``'s records through our logger."""

    def __init__(self, logger: FilteringBoundLogger) -> None:
        super().__init__()
        self.logger = logger

    def emit(self, record: logging.LogRecord) -> None:
        try:
            fields: dict[str, Any] = {"logger": record.name}
            if record.exc_info:
                fields["exc_info"] = record.exc_info
            # structlog has the five standard levels; a level in between becomes the one below it.
            level = max(logging.DEBUG, min(record.levelno // 10 * 10, logging.CRITICAL))
            self.logger.log(level, record.getMessage(), **fields)
        except Exception:
            self.handleError(record)  # a message that does not match its arguments: printed to stderr, not raised


def configure(
    settings: LogSettings,
    *,
    stream: BinaryIO | None = None,
    clock: Clock | None = None,
    secrets: Iterable[str] = (),
    worker: int | None = None,
) -> Logs:
    """Send all logging to ``stream`` (default: stderr, so that a command's output on stdout stays clean).

    ``secrets``: the configured keys, which are masked everywhere; keys are also recognised by name and by form.
    ``worker``: its number is in each line; None: there is one process.
    """
    stream = stream or sys.stderr.buffer
    level = _number(settings.level)
    redacting = Redaction(secrets)
    clock = clock or SystemClock()
    also = {} if worker is None else {"worker": worker}
    stamp = _Stamp(clock, also)
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
    # A stamp of its own: the writer's thread composes.
    composer = None if coloured else LineComposer(_Stamp(clock).of, redacting, text=text, free=FREE, also=also)
    return Logs(logger, writer, level, redacting, composer)


def _number(level: str) -> int:
    return logging.getLevelNamesMapping()[level.upper()]


class _Output:
    """Takes the logger's lines. Warnings and worse are written at once, without waiting for more lines."""

    def __init__(self, writer: LineWriter) -> None:
        self._writer = writer

    def info(self, line: bytes) -> None:
        self._writer.write(line + b"\n")

    debug = info

    def warning(self, line: bytes) -> None:
        self._writer.write(line + b"\n", now=True)

    error = critical = warning


class _Stamp:
    """Puts time, level and event before the other fields, and ``also`` after them."""

    def __init__(self, clock: Clock, also: Mapping[str, int] = NOTHING) -> None:
        self._clock = clock
        self._also = also
        self._second = -1
        self._text = ""

    def of(self, wall: float) -> str:
        """ISO 8601, to the millisecond. The part up to the second is made once a second."""
        second = int(wall)
        if second != self._second:
            self._second, self._text = (
                second,
                datetime.fromtimestamp(second, UTC).isoformat()[: len("2026-11-21T09:30:00")],
            )
        return f"{self._text}.{int((wall - second) * 1000):03d}Z"

    def __call__(self, logger: object, method: str, event: EventDict) -> EventDict:
        head = {"time": self.of(self._clock.wall()), "level": method, "event": event.pop("event")}
        return {**head, **self._also, **event}


def _render_json(logger: object, method: str, event: EventDict) -> bytes:
    return as_json(event)


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
        # A message may contain a client's text. A line break in it would let the client write lines of our log.
        shown = {name: printable(value) for name, value in event.items()}
        if "exception" in event:
            shown["exception"] = "\n".join(printable(line) for line in str(event["exception"]).split("\n"))
        return console(logger, method, shown).encode("utf-8", "backslashreplace")

    return render
