"""The numbers of a configuration that ``kvgate tune`` searches."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from random import Random

from gateway.config.registry import Registry, discover
from gateway.config.wiring import find, parameters, wire
from gateway.framework import NULL_OBSERVER, Context, ManualClock
from gateway.replay.policies import Wiring

ABSOLUTE = "max-score"
"""The type of a picker that looks at which score is highest only."""

Key = tuple[str, str]
"""A plugin's instance and one of its parameters, or ``weight``."""
Values = Mapping[Key, float]


@dataclass(frozen=True, slots=True)
class Knob:
    """One number that is searched. ``whole``: it is an integer. ``evicts``: it weighs what a full cache pushes out."""

    key: Key
    value: float
    whole: bool = False
    evicts: bool = False

    @property
    def name(self) -> str:
        return f"{self.key[0]}.{self.key[1]}"


def knobs(wiring: Wiring, registry: Registry | None = None) -> list[Knob]:
    """The numbers of the scorers that the model's handler runs: their parameters, and their weights where several are
    blended (of the first none: only ratios matter). A parameter with the metadata ``blended`` counts only where its
    scorer is blended with others, or is not picked from by the highest score; one with ``evicts`` only in cells whose
    caches can be full. Raises ConfigError."""
    config = wiring.config
    registry = registry or discover()
    types = registry.plugins
    # Asked of the handler itself: what it runs may be its parameters' defaults.
    handler = wire(config, _context, registry).handlers[wiring.handler]
    names: Collection[str] = getattr(handler, "profiles", [profile.name for profile in config.profiles])
    asked = [profile for profile in config.profiles if profile.name in names]
    found: dict[Key, Knob] = {}
    for profile in asked:
        for scorer in profile.scorers[1:]:
            key = (scorer.plugin, "weight")
            found.setdefault(key, Knob(key, scorer.weight))
    used = {scorer.plugin for profile in asked for scorer in profile.scorers}
    absolute = {plugin.name for plugin in config.plugins if plugin.type == ABSOLUTE}
    blended = {
        scorer.plugin
        for profile in asked
        for scorer in profile.scorers
        if len(profile.scorers) > 1 or profile.picker not in absolute
    }
    for i, plugin in enumerate(config.plugins):
        if plugin.name not in used:
            continue
        path = ("plugins", i)
        typed = parameters(find(types, plugin, path, config.origin), plugin, path, config.origin)
        for field in dataclasses.fields(typed):
            if field.metadata.get("blended") and plugin.name not in blended:
                continue
            value = getattr(typed, field.name)
            if value is None:
                value = field.metadata.get("usual")  # of a parameter that follows from the requests, where it is null
            if isinstance(value, int | float) and not isinstance(value, bool):
                key = (plugin.name, field.name)
                found[key] = Knob(key, value, isinstance(value, int), field.metadata.get("evicts", False))
    return list(found.values())


def _context(name: str) -> Context:
    return Context(name=name, clock=ManualClock(), random=Random(0), observer=NULL_OBSERVER)
