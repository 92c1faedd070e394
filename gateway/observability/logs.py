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
from gateway.observability.redaction import Redaction
from gateway.observability.settings import LogSettings
from gateway.observability.writer import LineWriter


class Logs:
    """What ``configure`` set up. ``close`` writes what is left and takes it away again.

    ``make``: gives the logger of a level. ``redacting``: its step that masks secrets.
    """

    def __init__(
        self, make: Callable[[int], FilteringBoundLogger], writer: LineWriter, level: int, redacting: Redaction
    ) -> None:
        self.logger = make(level)
        self._make = make
        self._writer = writer
        self._redacting = redacting
        self._bridge = Bridge(self.logger)
        self._root = logging.getLogger()
        self._ours = logging.getLogger("kvgate")
        self._before = (self._root.level, self._ours.level)
        self._root.addHandler(self._bridge)
        self._set_level(level)

    def change(self, level: str, secrets: Iterable[str]) -> None:
        """Another level, and more to mask; ``logger`` is another one from then on."""
        self._redacting.learn(secrets)
        number = _number(level)
        self.logger = self._bridge.logger = self._make(number)
        self._set_level(number)

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
    render = _text_renderer(stream) if settings.format == "text" else _render_json
    processors: list[Processor] = [
        structlog.processors.format_exc_info,
        redacting,
        _Stamp(clock or SystemClock()),
        render,
    ]

    def dropped(count: int) -> bytes:
        event: Any = {"event": f"{count} log lines dropped: their reader is too slow"}
        for processor in processors:
            event = processor(None, "warning", event)
        return bytes(event) + b"\n"

    writer = LineWriter(stream, dropped)
    # A file to structlog is what has write and flush: that is all it calls.
    output: Any = structlog.BytesLogger(writer)  # type: ignore[arg-type]

    def logger(level: int) -> FilteringBoundLogger:
        wrapper = structlog.make_filtering_bound_logger(level)
        made: FilteringBoundLogger = structlog.wrap_logger(output, processors=processors, wrapper_class=wrapper)
        return made

    return Logs(logger, writer, level, redacting)


def _number(level: str) -> int:
    return logging.getLevelNamesMapping()[level.upper()]


class _Stamp:
    """Puts time, level and event before the other fields."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def __call__(self, logger: object, method: str, event: EventDict) -> EventDict:
        time = datetime.fromtimestamp(self._clock.wall(), UTC).isoformat(timespec="milliseconds")
        head = {"time": time.replace("+00:00", "Z"), "level": method, "event": event.pop("event")}
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
    if isinstance(value, str) and not value.isprintable():
        return value.encode("unicode_escape").decode("ascii")
    return value
