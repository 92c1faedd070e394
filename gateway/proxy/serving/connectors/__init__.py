"""How KV gets from a prefill engine to a decode engine: one file for each way, behind ``Connector``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

from gateway.proxy.serving.connectors.contract import Connector, Fetch, Pair, Transfer
from gateway.proxy.serving.connectors.mooncake import Mooncake
from gateway.proxy.serving.connectors.nixl import Nixl
from gateway.proxy.serving.connectors.sglang import Sglang
from gateway.proxy.serving.connectors.shared_storage import SharedStorage

__all__ = ["Connector", "Pair", "Transfer", "connectors"]


def connectors(fetch: Fetch, now: Callable[[], float], random: Random) -> Mapping[str, Connector]:
    """All of them, by the name that a plan gives. ``now``: seconds of a clock that never steps."""
    return {
        "nixl": Nixl(),
        "mooncake": Mooncake(fetch, now),
        "sglang": Sglang(random),
        "shared-storage": SharedStorage(),
    }
