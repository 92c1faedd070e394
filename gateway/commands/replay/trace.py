"""Reads a trace: one JSON object a line, or a table as Azure's and BurstGPT's traces are."""

from __future__ import annotations

import csv
from itertools import chain
from pathlib import Path

from gateway.commands.replay.answers import with_answers
from gateway.commands.replay.jsonl import JsonLines
from gateway.commands.replay.recording import Recording
from gateway.commands.replay.table import Table, columns
from gateway.errors import ConfigError


def read(path: Path, first: int | None = None) -> Recording:
    """Read the trace at a path, or only the first ``first`` requests of the file.

    Raises ConfigError with the number of the line and what is wrong with it.
    """
    try:
        # Line ends are kept: the CSV reader needs them.
        with path.open(encoding="utf-8-sig", newline="") as file:
            number, head = next(((n, text) for n, text in enumerate(file, 1) if text.strip()), (0, ""))
            if not head:
                raise ConfigError(f"{path}: has no requests")
            if head.lstrip()[0] in "{[":
                reader: JsonLines | Table = JsonLines()
                rows = enumerate(chain([head], file), number)
            else:
                try:
                    reader = Table(columns(head))
                except ValueError as error:
                    raise ConfigError(f"{path}:{number}: {error}") from None
                rows = enumerate(file, number + 1)
            for line, text in rows:
                if first is not None and len(reader.lines) >= first:
                    break
                if text.strip():
                    try:
                        reader.take(text, line)
                    except (ValueError, csv.Error) as error:
                        raise ConfigError(f"{path}:{line}: {error}") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8: byte 0x{error.object[error.start]:02x}") from None
    if not reader.lines:
        left_out = f" with tokens: all {reader.failed} failed" if reader.failed else ""
        raise ConfigError(f"{path}: has no requests{left_out}")
    reader.lines.sort(key=lambda line: line.at)
    return with_answers(Recording(reader.lines, reader.block_size, reader.prefixes, reader.failed))
