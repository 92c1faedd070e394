"""One cell of a comparison: which workload, at which load, on which machines. Small and picklable: a worker process
builds all the rest from it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from gateway.config.origin import nearest
from gateway.errors import ConfigError
from gateway.replay.groups import Groups, Shape
from gateway.replay.mooncake import Line, Trace, read
from gateway.replay.workload import Workload
from simulator.virtual.machine import MACHINES, Machine

LARGEST = 1e6
"""Of a load, a time in seconds or a factor, and 1 / it the smallest: beyond them nothing is compared any more, and a
run does not end."""


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
class Cell:
    """``machine``: a name in ``MACHINES``. ``speed``: requests/s/endpoint; None: a trace's own pace, or a closed loop.

    ``scrape``: seconds between two scrapes; None: none. ``event_delay``: seconds from an engine's block to the index.
    ``cost_scale``: how wrong the cost model's scalars are, ``step_scale`` those of decode steps (None: as wrong); not
    fitted if one is not 1.
    """

    source: TraceSource | GroupsSource
    machine: str = "70b-tp4"
    endpoints: int = 8
    speed: float | None = None
    scrape: float | None = 1.0
    event_delay: float = 0.05
    cost_scale: float = 1.0
    step_scale: float | None = None

    def __post_init__(self) -> None:
        if self.machine not in MACHINES:
            raise ConfigError(f"there is no machine {self.machine!r}{nearest(self.machine, MACHINES)}")
        if self.endpoints < 1:
            raise ConfigError("endpoints must be at least 1")
        if not 0 <= self.event_delay <= LARGEST:
            raise ConfigError(f"event-delay must be in 0..{LARGEST:g} seconds")
        for name in ("speed", "scrape", "cost_scale", "step_scale"):
            value = getattr(self, name)
            if value is not None and not 1 / LARGEST <= value <= LARGEST:
                raise ConfigError(f"{name.replace('_', '-')} must be in {1 / LARGEST:g}..{LARGEST:g}")

    @property
    def name(self) -> str:
        """Such as ``mooncake_conversation, 0.45 requests/s/endpoint, 8 x 70b-tp4+host``."""
        load = "" if self.speed is None else f"{self.speed:.2f} requests/s/endpoint, "
        return f"{self.source.name}, {load}{self.endpoints} x {self.machine}"

    @property
    def hardware(self) -> Machine:
        return MACHINES[self.machine]

    def workload(self, seed: int) -> Workload:
        return self.source.workload(None if self.speed is None else self.speed * self.endpoints, seed)


@lru_cache(maxsize=2)
def _read(path: Path, first: int | None) -> list[Line]:
    return read(path, first)
