"""The setting of a replay: the engines, when they fail, leave and join, and the gateway's knowledge of them. With a
workload and its load it is one cell of a comparison."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

from gateway.commands.replay.fleet import USUAL, Kinds, Link, count, named
from gateway.commands.replay.objectives import Objectives
from gateway.commands.replay.sources import Source
from gateway.commands.replay.workload import Workload
from gateway.config.origin import nearest
from gateway.errors import ConfigError
from gateway.framework import Role
from simulator.virtual.machine import Machine
from simulator.virtual.noise import Noise

LATEST = 1e9
"""Seconds: longer than any trace."""


class What(StrEnum):
    """A change of an engine.

    ``FAIL``: its process dies, and all that it computes and holds is lost. ``LEAVE``: it is drained: it finishes its
    requests and gets no new ones. ``JOIN``: it starts with an empty cache; an engine whose first change is to join is
    absent until then.
    """

    FAIL = "fail"
    LEAVE = "leave"
    JOIN = "join"


@dataclass(frozen=True, slots=True)
class Change:
    """A change at a time. ``at``: seconds of virtual time. ``endpoint``: its number in the fleet, from 0."""

    at: float
    endpoint: int
    what: What

    def __str__(self) -> str:
        return f"{self.at:g}:{self.what}:{self.endpoint}"


Schedule: TypeAlias = tuple[Change, ...]


def schedule(texts: Sequence[str]) -> Schedule:
    """Read changes ``AT:WHAT:ENDPOINT``, such as ``300:fail:2``; returns them ordered by time. Raises ConfigError."""
    return tuple(sorted(map(_change, texts), key=lambda change: change.at))


def check(changes: Schedule, endpoints: int) -> None:
    """Check a schedule. Raises ConfigError for an endpoint that does not exist, or a change that contradicts the one
    before."""
    there: dict[int, bool] = {}
    for change in changes:
        if not 0 <= change.endpoint < endpoints:
            raise ConfigError(f"--change {change}: the endpoints are 0..{endpoints - 1}")
        if not 0 <= change.at <= LATEST:
            raise ConfigError(f"--change {change}: the time must be in 0..{LATEST:g} seconds")
        joins = change.what is What.JOIN
        if there.get(change.endpoint, not joins) == joins:
            state = "there already" if joins else "not there then"
            raise ConfigError(f"--change {change}: endpoint {change.endpoint} is {state}")
        there[change.endpoint] = joins


def _change(text: str) -> Change:
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?):([a-z]+):(\d{1,5})", text.strip(), re.ASCII)
    if found is None:
        raise ConfigError(f"--change: {text!r} must be AT:WHAT:ENDPOINT, such as 300:fail:2")
    words = [str(each) for each in What]
    if found[2] not in words:
        raise ConfigError(f"--change: there is no {found[2]!r}{nearest(found[2], words)}; one of {', '.join(words)}")
    return Change(float(found[1]), int(found[3]), What(found[2]))


LARGEST = 1e6
"""Upper bound of a load, a time in seconds or a factor; 1 / it is the lower bound. Beyond them a comparison means
nothing, and a run does not end."""

MOST_DECIDERS = 64
"""Gateways: each has an index of its own, so that a mistyped number does not take all memory."""

USUAL_LINK = Link()
QUIET = Noise()
UNASKED = Objectives()


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """``fleet``: the engines, one endpoint each, with their roles. ``link``: over which an engine hands KV over to
    another. ``schedule``: which engines fail, leave or join, and when.

    ``believed``: the machine whose costs the gateway is given for all engines, so that only its fit can find the true
    ones; None: it is given each engine's own. ``cost_scale``: factor by which these costs are wrong; ``step_scale``:
    the factor of decode steps (None: the same). Costs are not fitted if one of them is not 1. ``fitted``: whether costs
    are fitted to observations. ``objectives``: sent with the requests, and counted by goodput. ``noise``: makes engine
    steps differ from their machines' times. ``scrape``: seconds between two scrapes of an engine; None: no scrapes.
    ``event_delay``: seconds until the gateway knows of an engine's event. The gateway applies what has arrived before
    it places a request, so this is the delay of a message only.

    ``deciders``: gateways, among which requests are dealt in turn. ``delay``: seconds until the others know what one of
    them has booked.
    """

    fleet: Kinds = USUAL
    link: Link = USUAL_LINK
    schedule: Schedule = ()
    believed: Machine | None = None
    cost_scale: float = 1.0
    step_scale: float | None = None
    fitted: bool = True
    objectives: Objectives = UNASKED
    noise: Noise = QUIET
    scrape: float | None = 1.0
    event_delay: float = 0.01
    deciders: int = 1
    delay: float = 0.003

    def __post_init__(self) -> None:
        if not self.fleet:
            raise ConfigError("endpoints must be at least 1")
        if not 0 <= self.event_delay <= LARGEST:
            raise ConfigError(f"event-delay must be in 0..{LARGEST:g} seconds")
        if not 1 <= self.deciders <= MOST_DECIDERS:
            raise ConfigError(f"deciders must be in 1..{MOST_DECIDERS}")
        if not 0 <= self.delay <= LARGEST:
            raise ConfigError(f"delay must be in 0..{LARGEST:g} seconds")
        check(self.schedule, self.endpoints)
        if all(kind.role is Role.PREFILL for kind in self.fleet):
            raise ConfigError("endpoints: none may answer: give some of them the role decode, or none")
        for name in ("scrape", "cost_scale", "step_scale"):
            self._within(name)

    @property
    def endpoints(self) -> int:
        return count(self.fleet)

    @property
    def machines(self) -> list[Machine]:
        """Each endpoint's."""
        return [kind.machine for kind in self.fleet for _ in range(kind.count)]

    @property
    def roles(self) -> list[Role]:
        """Each endpoint's."""
        return [kind.role for kind in self.fleet for _ in range(kind.count)]

    def _within(self, name: str) -> None:
        value = getattr(self, name)
        if value is not None and not 1 / LARGEST <= value <= LARGEST:
            raise ConfigError(f"{name.replace('_', '-')} must be in {1 / LARGEST:g}..{LARGEST:g}")


@dataclass(frozen=True, slots=True)
class Cell(Scene):
    """One cell of a comparison. It is small and can be pickled: a worker process builds everything else from it.

    ``speed``: requests/s/endpoint; None: the trace's own rate, or a closed loop.
    """

    source: Source
    speed: float | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        Scene.__post_init__(self)
        self._within("speed")

    @property
    def name(self) -> str:
        """The name of the cell, such as ``mooncake_conversation, 0.45 requests/s/endpoint, 8 x 70b-tp4+host``, with its
        objectives, if any."""
        load = "" if self.speed is None else f"{self.speed:.2f} requests/s/endpoint, "
        asked = f", {self.objectives}" if str(self.objectives) else ""
        several = f", bookings of others known after {self.delay * 1000:g} ms" if self.deciders > 1 else ""
        return f"{self.source.name}, {load}{named(self.fleet)}{several}{asked}"

    def workload(self, seed: int) -> Workload:
        return self.source.workload(None if self.speed is None else self.speed * self.endpoints, seed)
