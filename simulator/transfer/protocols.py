"""The protocol that an engine's settings name."""

from __future__ import annotations

from collections.abc import Mapping

from simulator.engine import Engine
from simulator.settings import EngineSettings
from simulator.transfer.connector import Connector
from simulator.transfer.mooncake import Mooncake
from simulator.transfer.nixl_pull import NixlPull
from simulator.transfer.nixl_push import NixlPush
from simulator.transfer.sglang import Sglang
from simulator.transfer.storage import SharedStorage

PROTOCOLS: Mapping[str, type[Connector]] = {
    "none": Connector,
    "nixl": NixlPull,
    "nixl-push": NixlPush,
    "mooncake": Mooncake,
    "sglang": Sglang,
    "shared-storage": SharedStorage,
}


def connect(settings: EngineSettings, engine: Engine, engine_id: str, rank: int) -> Connector:
    """One rank's connector. Where there are several each has an engine id of its own, as vLLM makes it."""
    name = f"{engine_id}_dp{rank}" if settings.ranks > 1 or rank else engine_id
    return PROTOCOLS[settings.connector](settings, engine, name, rank)
