"""A line on a terminal, and what a logger leaves out."""

from __future__ import annotations

import io
import logging
import re

from gateway.core.clock import ManualClock
from gateway.observability.logger import COLOURS, Logger, text_line
from gateway.observability.logs import configure
from gateway.observability.settings import LogSettings

COLOUR = re.compile("\x1b\\[\\d+m")


class Terminal(io.BytesIO):
    def isatty(self) -> bool:
        return True


def test_a_level_below_is_not_written() -> None:
    written = []
    logger = Logger(logging.WARNING, lambda level, fields: written.append((level, dict(fields))))
    for level in COLOURS:
        logger.log(getattr(logging, level.upper()), "said", of=level)
    assert written == [
        (level, {"event": "said", "of": level}) for level in COLOURS if level in ("warning", "error", "critical")
    ]


def test_a_terminal_has_the_same_line_in_colours(lines) -> None:
    terminal = Terminal()
    shown = {"endpoint": "a b", "ttft": 0.25, "none": None, "of": {"a": [1, "x"]}, "hostile": "\x1b[31m\r\n"}
    for stream in (lines, terminal):
        logs = configure(LogSettings(format="text"), stream=stream, clock=ManualClock())
        logs.logger.warning("hello\nworld", **shown)
        logging.getLogger("kvgate.x").error("failed")
        logs.close()
    coloured = terminal.getvalue().decode()
    assert COLOURS["warning"] in coloured
    assert COLOUR.sub("", coloured) == lines.text
    assert lines.text == (
        "1970-01-01T00:00:00.000Z [warning  ] hello\\nworld endpoint='a b' ttft=0.25 none=None of={'a': [1, 'x']} "
        "hostile=\\x1b[31m\\r\\n\n"
        "1970-01-01T00:00:00.000Z [error    ] failed [kvgate.x]\n"
    )


def test_an_exception_is_below_its_line() -> None:
    fields = {"time": "t", "level": "error", "event": "failed", "exception": "Traceback\nValueError: \x1b"}
    assert text_line(fields, coloured=False) == b"t [error    ] failed\nTraceback\nValueError: \\x1b"
