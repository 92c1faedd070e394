"""The setting of a replay: the engines, and the gateway's knowledge of them."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.commands.replay.kinds import USUAL, Kinds, count
from gateway.commands.replay.link import Link
from gateway.commands.replay.objectives import Objectives
from gateway.commands.replay.schedule import Schedule, check
from gateway.errors import ConfigError
from gateway.framework import Role
from simulator.virtual.machine import Machine
from simulator.virtual.noise import Noise

LARGEST = 1e6
"""Upper bound of a load, a time in seconds or a factor; 1 / it is the lower bound. Beyond them a comparison means
nothing, and a run does not end."""

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
