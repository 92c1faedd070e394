"""What tests ask a fleet beside what requests ask it."""

from __future__ import annotations

from gateway.fleet.fleet import Fleet
from gateway.framework import Engine
from gateway.framework.fleet import Model


def engines_of(fleet: Fleet) -> list[Engine]:
    """Engines that are there, each once; not those that were dropped and have requests running."""
    present = (endpoint.engine for endpoint in fleet.all_endpoints if not fleet.drain_state(endpoint).gone)
    return list(dict.fromkeys(present))


def ready(fleet: Fleet, model: Model) -> int:
    """How many of the model's endpoints can be used now."""
    return sum(endpoint.engine.up and not endpoint.draining for endpoint in fleet.endpoints(model))
