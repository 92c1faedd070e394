"""What all parts of a fleet share."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from gateway.core.observer import Observer
from gateway.core.pauses import Pauses
from gateway.fleet.listener import Listeners
from gateway.fleet.settings import FleetSettings
from gateway.framework import Clock


@dataclass(frozen=True, slots=True)
class FleetContext:
    """``pauses``: of our own event loop."""

    settings: FleetSettings
    clock: Clock
    observer: Observer
    random: Random
    listeners: Listeners = field(default_factory=Listeners)
    pauses: Pauses = field(default_factory=Pauses)
