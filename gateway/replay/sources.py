"""Where a cell's requests come from: a trace, or a generator. Small and picklable.

Each makes a ``workload`` at a rate, in requests/s; without one a trace has its own pace, and what is generated is a
closed loop. Each has a ``split``: a part to search on and a part to hold out; of what is generated both are the same,
since other seeds give other requests. Both raise ConfigError.
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
from gateway.replay.mooncake import Line, Trace, read
from gateway.replay.workload import Workload

TRAINING = 0.5
"""Share of a trace's requests that is searched on; the rest is held out."""


@dataclass(frozen=True, slots=True)
class TraceSource:
    """A Mooncake trace: its requests from number ``skip`` on, ``first`` of them (None: all). ``title``: what it is
    called; empty: as its file."""

    path: Path
    first: int | None = None
    skip: int = 0
    title: str = ""

    @property
    def name(self) -> str:
        return self.title or self.path.stem

    def lines(self) -> list[Line]:
        end = None if self.first is None else self.skip + self.first
        lines = _read(self.path, end)[self.skip :]
        if not lines:
            raise ConfigError(f"{self.path}: has no more than {self.skip} requests")
        return lines

    def workload(self, rate: float | None, seed: int) -> Workload:
        return Trace(self.name, self.lines(), rate=rate, seed=seed)

    def split(self) -> tuple[TraceSource, TraceSource]:
        """Its beginning and its rest."""
        requests = len(self.lines())
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

    def workload(self, rate: float | None, seed: int) -> Workload:
        return Agents(self.shape, rate=rate, seed=seed)

    def split(self) -> tuple[AgentsSource, AgentsSource]:
        return self, self


Source: TypeAlias = TraceSource | GroupsSource | AgentsSource


@lru_cache(maxsize=2)
def _read(path: Path, first: int | None) -> list[Line]:
    return read(path, first)
