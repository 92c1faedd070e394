"""One cell of a comparison: which workload, at which load, on which engines. Small and picklable: a worker process
builds all the rest from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from gateway.errors import ConfigError
from gateway.replay.groups import Groups, Shape
from gateway.replay.kinds import named
from gateway.replay.mooncake import Line, Trace, read
from gateway.replay.scene import Scene
from gateway.replay.workload import Workload


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

    @property
    def requests(self) -> int:
        return len(self.lines())


@dataclass(frozen=True, slots=True)
class GroupsSource:
    """Generated groups of users."""

    shape: Shape

    @property
    def name(self) -> str:
        return Groups.name

    def workload(self, rate: float | None, seed: int) -> Workload:
        return Groups(self.shape, rate=rate, seed=seed)

    @property
    def requests(self) -> int:
        return self.shape.requests


@dataclass(frozen=True, slots=True)
class Cell(Scene):
    """``speed``: requests/s/endpoint; None: a trace's own pace, or a closed loop."""

    source: TraceSource | GroupsSource
    speed: float | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        Scene.__post_init__(self)
        self._within("speed")

    @property
    def name(self) -> str:
        """Such as ``mooncake_conversation, 0.45 requests/s/endpoint, 8 x 70b-tp4+host``."""
        load = "" if self.speed is None else f"{self.speed:.2f} requests/s/endpoint, "
        return f"{self.source.name}, {load}{named(self.fleet)}"

    def workload(self, seed: int) -> Workload:
        return self.source.workload(None if self.speed is None else self.speed * self.endpoints, seed)


@lru_cache(maxsize=2)
def _read(path: Path, first: int | None) -> list[Line]:
    return read(path, first)
