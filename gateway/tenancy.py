"""Where the tenants and keys of a configuration are kept: what reads them, and what writes them. And where it is kept
what they have used."""

from __future__ import annotations

import os
import random

from gateway.config.settings import Config
from gateway.config.tenants_file import TenantsFile
from gateway.errors import ConfigError
from gateway.framework import Clock
from gateway.sharing.seat import Seat
from gateway.sharing.settings import SharingSettings
from gateway.tenants.changes import Store
from gateway.tenants.divider import Divider
from gateway.tenants.file import FileSource
from gateway.tenants.limits_table import LimitsTable
from gateway.tenants.shared_state import SharedState
from gateway.tenants.sources import Source
from gateway.tenants.valkey_keys import ValkeySource
from gateway.tenants.valkey_store import ValkeyStore


def source_of(config: Config, before: Config | None = None, source: Source | None = None) -> Source | None:
    """What reads them; None: all is in plugins.yaml. A file is read here. ``before``, ``source``: in force; the same
    server is followed further. Raises ConfigError."""
    tenants = config.tenants
    if tenants.file is not None:
        return FileSource(tenants.file, _file(tenants.file, config).load)
    if tenants.valkey is None:
        return None
    if before is not None and before.tenants.valkey == tenants.valkey:
        return source
    try:
        return ValkeySource(tenants.valkey)
    except ConfigError as error:
        raise config.origin.error(("tenants", "valkey"), error.message) from error


def store_of(config: Config) -> Store | None:
    """What writes them; None: they stand in plugins.yaml, which nothing writes."""
    tenants = config.tenants
    if tenants.file is not None:
        from gateway.tenants.file_store import FileStore  # with a parser that is used for nothing else

        return FileStore(_file(tenants.file, config))
    return None if tenants.valkey is None else ValkeyStore(tenants.valkey)


def limits_of(seat: Seat | None, sharing: SharingSettings, clock: Clock) -> SharedState | None:
    """What is used of limits and budgets, where the workers of a host share it, or hosts divide it; None: in this
    process."""
    divided = sharing.url is not None
    if seat is not None and seat.limits_fd >= 0:
        return SharedState(LimitsTable.join(seat.limits_fd, seat.number), clock, divided=divided)
    if not divided:
        return None
    made = LimitsTable.create(1)
    try:
        return SharedState(LimitsTable.join(made.fd, 0), clock, divided=True)
    finally:
        made.close()


def divider_of(
    state: SharedState | None, sharing: SharingSettings, clock: Clock, chance: random.Random
) -> Divider | None:
    """What divides limits with other hosts, if any are."""
    return None if state is None or sharing.url is None else Divider(state, sharing, clock, chance)


def _file(name: str, config: Config) -> TenantsFile:
    return TenantsFile(name, config.tenants, os.environ)
