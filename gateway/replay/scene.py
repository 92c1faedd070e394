"""What a workload is replayed on: the engines, and what the gateway sees and believes of them."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.errors import ConfigError
from gateway.framework import Role
from gateway.replay.kinds import USUAL, Kinds, count
from gateway.replay.link import Link
from gateway.replay.objectives import Objectives
from gateway.replay.schedule import Schedule, check
from simulator.virtual.machine import Machine
from simulator.virtual.noise import Noise

LARGEST = 1e6
"""Of a load, a time in seconds or a factor, and 1 / it the smallest: beyond them nothing is compared any more, and a
run does not end."""

USUAL_LINK = Link()
QUIET = Noise()
UNASKED = Objectives()


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """``fleet``: the engines, one endpoint each, in their roles.
    ``link``: by which each of them hands KV over to another, where prompts are computed apart.
    ``schedule``: which of them fail, leave or join, and when.

    ``believed``: the gateway is told of this machine's costs for all of them, and learns what is otherwise only as its
    fit finds it; None: it is told of each one's own. ``cost_scale``: how wrong these costs are, ``step_scale`` those of
    decode steps (None: as wrong); not fitted if one is not 1. ``fitted``: whether costs follow what is seen.
    ``objectives``: what requests ask to be answered within, and what goodput counts.
    ``noise``: what makes the engines' steps differ from their machines' times.
    ``scrape``: seconds between two scrapes of an engine, which is how old its figures get; None: none at all.
    ``event_delay``: seconds until the gateway knows what an engine stored or removed. It looks at what has come before
    it places a request, so that this is the way of a message, and no longer the time between two looks.
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

    def __post_init__(self) -> None:
        if not self.fleet:
            raise ConfigError("endpoints must be at least 1")
        if not 0 <= self.event_delay <= LARGEST:
            raise ConfigError(f"event-delay must be in 0..{LARGEST:g} seconds")
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
