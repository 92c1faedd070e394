"""The wiring of plugins, profiles and handlers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class PluginSettings:
    """A named instance of a plugin type (an entry point's name): a filter, a scorer, a picker or the order of a
    queue."""

    name: str
    type: str
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WeightedScorer:
    """A scorer of a profile: an instance's name, and what its 0..1 is multiplied by before all are added up."""

    plugin: str
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.weight) and self.weight >= 0):
            raise ValueError("weight must be a number of at least 0")


@dataclass(frozen=True, slots=True)
class ProfileSettings:
    """Filters in order, weighted scorers, one picker: names of instances."""

    name: str
    picker: str
    filters: tuple[str, ...] = ()
    scorers: tuple[WeightedScorer, ...] = ()


@dataclass(frozen=True, slots=True)
class HandlerSettings:
    """A named handler: its type (an entry point's name) and its parameters."""

    name: str
    type: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
