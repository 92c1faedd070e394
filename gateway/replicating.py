"""The replicas that a gateway decides with, if its configuration names a server between them."""

from __future__ import annotations

import socket

from gateway.config.settings import Config
from gateway.sharing.replicas import Replicas, name_of
from gateway.sharing.seat import Seat
from gateway.sharing.shared_loads import SharedLoads
from gateway.sharing.siblings import Siblings
from gateway.wiring import Common, blaming


def replicas_of(
    config: Config, loads: SharedLoads | None, seat: Seat | None, siblings: Siblings | None, common: Common
) -> Replicas | None:
    """The others that this gateway decides with; None: the configuration names no server between them."""
    if config.sharing.url is None or loads is None:
        return None
    with blaming(config, "sharing", "url"):
        return Replicas(
            config.sharing,
            loads.table,
            siblings=siblings,
            host=name_of(None if seat is None else seat.directory),
            place=f"{socket.gethostname()}:{config.listen.port}",
            clock=common.clock,
            observer=common.observer,
            chance=common.chance,
        )
