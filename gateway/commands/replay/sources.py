"""The sources of a cell's requests: a trace or a generator. They are small and can be pickled.

Each makes a ``workload`` at a rate in requests/s. Without a rate a trace has its own, and a generator makes a closed
loop. Each has a ``split`` into a part to search on and a part to hold out; a generator's parts are equal, since other
seeds give other requests. Both raise ConfigError. The ``notes`` are hints for the reader of the figures.
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import TypeAlias

from gateway.commands.replay.agents import Agents, AgentShape
from gateway.commands.replay.groups import Groups, Shape
from gateway.commands.replay.jsonl import JsonLines
from gateway.commands.replay.recording import Recording, Trace, with_answers
from gateway.commands.replay.table import Table
from gateway.commands.replay.workload import Workload
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
                    reader = Table(head)
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


TRAINING = 0.5
"""Share of a trace's requests to search on; the rest is held out."""


@dataclass(frozen=True, slots=True)
class TraceSource:
    """A trace in a file: ``first`` requests (None: all), from number ``skip`` on. ``title``: its name; empty: the
    file's."""

    path: Path
    first: int | None = None
    skip: int = 0
    title: str = ""

    @property
    def name(self) -> str:
        return self.title or self.path.stem

    def recording(self) -> Recording:
        end = None if self.first is None else self.skip + self.first
        whole = _read(self.path, end)
        lines = whole.lines[self.skip :]
        if not lines:
            raise ConfigError(f"{self.path}: has no more than {self.skip} requests")
        return replace(whole, lines=lines)

    @property
    def notes(self) -> list[str]:
        """Hints for the reader of the figures."""
        whole, notes = self.recording(), []
        if whole.failed:
            notes.append(f"{self.path}: {whole.failed} requests have no tokens and are left out")
        if not whole.prefixes:
            notes.append(f"{self.path}: does not say what prompts share: each is taken for new, in blocks of 16 tokens")
        return notes

    def workload(self, rate: float | None, seed: int) -> Workload:
        return Trace(self.name, self.recording(), rate=rate, seed=seed)

    def split(self) -> tuple[TraceSource, TraceSource]:
        """The beginning of the trace, and the rest."""
        requests = len(self.recording().lines)
        first = math.floor(TRAINING * requests)
        if first < 2:
            raise ConfigError(f"{self.path}: {requests} requests cannot be split into a training and a held-out part")
        return replace(self, first=first), replace(self, first=requests - first, skip=self.skip + first)


@dataclass(frozen=True, slots=True)
class GeneratedSource:
    """Groups of users or sessions of agents, as the ``shape`` says."""

    shape: Shape | AgentShape

    @property
    def name(self) -> str:
        return Groups.name if isinstance(self.shape, Shape) else Agents.name

    @property
    def notes(self) -> list[str]:
        return []

    def workload(self, rate: float | None, seed: int) -> Workload:
        if isinstance(self.shape, Shape):
            return Groups(self.shape, rate=rate, seed=seed)
        return Agents(self.shape, rate=rate, seed=seed)

    def split(self) -> tuple[GeneratedSource, GeneratedSource]:
        return self, self


Source: TypeAlias = TraceSource | GeneratedSource


@lru_cache(maxsize=2)
def _read(path: Path, first: int | None) -> Recording:
    return read(path, first)
