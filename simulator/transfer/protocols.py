"""The protocol that an engine's settings name."""

from __future__ import annotations

from collections.abc import Mapping

from simulator.engine import Engine
from simulator.settings import EngineSettings
from simulator.transfer.connector import Connector
from simulator.transfer.nixl import NixlPull

PROTOCOLS: Mapping[str, type[Connector]] = {
    "none": Connector,
    "nixl": NixlPull,
}


def connect(settings: EngineSettings, engine: Engine, engine_id: str, rank: int) -> Connector:
    """One rank's connector. With several ranks each has an engine id of its own, as vLLM makes it."""
    name = f"{engine_id}_dp{rank}" if settings.ranks > 1 else engine_id
    return PROTOCOLS[settings.connector](settings, engine, name, rank)
