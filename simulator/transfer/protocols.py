"""The protocol that an engine's settings name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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


def connect(settings: EngineSettings, engines: Sequence[Engine], engine_id: str) -> list[Connector]:
    """A connector for each rank. Where there are several each has an engine id of its own, as vLLM makes it."""
    made = [
        PROTOCOLS[settings.connector](
            settings, engine, f"{engine_id}_dp{rank}" if len(engines) > 1 else engine_id, rank
        )
        for rank, engine in enumerate(engines)
    ]
    for connector in made:
        connector.ranks = made
    return made
