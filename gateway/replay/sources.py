"""Where a cell's requests come from: a trace, or a generator. Small and picklable.

Each makes a ``workload`` at a rate, in requests/s; without one a trace has its own pace, and what is generated is a
closed loop. Each has a ``split``: a part to search on and a part to hold out; of what is generated both are the same,
since other seeds give other requests. Both raise ConfigError. Its ``notes`` are what to say of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

from gateway.errors import ConfigError
from gateway.replay.agents import Agents, AgentShape
from gateway.replay.groups import Groups, Shape
from gateway.replay.recording import Recording, Trace
from gateway.replay.trace import read
from gateway.replay.workload import Workload

TRAINING = 0.5
"""Share of a trace's requests that is searched on; the rest is held out."""


@dataclass(frozen=True, slots=True)
class TraceSource:
    """A trace in a file: its requests from number ``skip`` on, ``first`` of them (None: all). ``title``: what it is
    called; empty: as its file."""

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
        """What a reader of the figures should know."""
        whole, notes = self.recording(), []
        if whole.failed:
            notes.append(f"{self.path}: {whole.failed} requests have no tokens and are left out")
        if not whole.prefixes:
            notes.append(f"{self.path}: does not say what prompts share: each is taken for new, in blocks of 16 tokens")
        return notes

    def workload(self, rate: float | None, seed: int) -> Workload:
        return Trace(self.name, self.recording(), rate=rate, seed=seed)

    def split(self) -> tuple[TraceSource, TraceSource]:
        """Its beginning and its rest."""
        requests = len(self.recording().lines)
        first = math.floor(TRAINING * requests)
        if first < 2:
            raise ConfigError(f"{self.path}: {requests} requests cannot be split into a training and a held-out part")
        return replace(self, first=first), replace(self, first=requests - first, skip=self.skip + first)


@dataclass(frozen=True, slots=True)
class GroupsSource:
    """Generated groups of users."""

    shape: Shape

    @property
    def name(self) -> str:
        return Groups.name

    @property
    def notes(self) -> list[str]:
        return []

    def workload(self, rate: float | None, seed: int) -> Workload:
        return Groups(self.shape, rate=rate, seed=seed)

    def split(self) -> tuple[GroupsSource, GroupsSource]:
        return self, self


@dataclass(frozen=True, slots=True)
class AgentsSource:
    """Generated sessions of agents."""

    shape: AgentShape

    @property
    def name(self) -> str:
        return Agents.name

    @property
    def notes(self) -> list[str]:
        return []

    def workload(self, rate: float | None, seed: int) -> Workload:
        return Agents(self.shape, rate=rate, seed=seed)

    def split(self) -> tuple[AgentsSource, AgentsSource]:
        return self, self


Source: TypeAlias = TraceSource | GroupsSource | AgentsSource


@lru_cache(maxsize=2)
def _read(path: Path, first: int | None) -> Recording:
    return read(path, first)
