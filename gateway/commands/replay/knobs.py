"""The numbers of a configuration that ``kvgate tune`` searches."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from random import Random

from gateway.commands.replay.policies import Policy
from gateway.config.build import build_scheduler, find, parameters
from gateway.config.registry import Registry, discover
from gateway.core.clock import ManualClock
from gateway.framework import Context

ABSOLUTE = "max-score"
"""The type of the picker that considers only which score is highest."""

Key = tuple[str, str]
"""The name of a plugin instance, and one of its parameters or ``weight``."""
Values = Mapping[Key, float]


@dataclass(frozen=True, slots=True)
class Knob:
    """One number that the search changes. ``whole``: it is an integer. ``evicts``: it weighs the cost of what a full
    cache evicts."""

    key: Key
    value: float
    whole: bool = False
    evicts: bool = False

    @property
    def name(self) -> str:
        return f"{self.key[0]}.{self.key[1]}"


def knobs(policy: Policy, registry: Registry | None = None) -> list[Knob]:
    """The numbers of the scorers that the model's handler runs: their parameters and, if several are blended, their
    weights (not the first one's: only ratios matter). A parameter with the metadata ``blended`` counts only if its
    scorer is blended with others or its picker is not max-score. One with ``evicts`` counts only in cells whose caches
    can fill. Raises ConfigError."""
    config = policy.config
    registry = registry or discover()
    types = registry.plugins
    # The handler knows its profiles, which may come from its parameters' defaults.
    handler = build_scheduler(config, _context, registry).handlers[policy.handler]
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
                value = field.metadata.get("usual")  # it is null: derived from the requests
            if isinstance(value, int | float) and not isinstance(value, bool):
                key = (plugin.name, field.name)
                found[key] = Knob(key, value, isinstance(value, int), field.metadata.get("evicts", False))
    return list(found.values())


def _context(name: str) -> Context:
    return Context(name=name, clock=ManualClock(), random=Random(0))
