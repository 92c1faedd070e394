"""The ways to let requests wait that are compared. Behind each of them requests are placed by the same policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from gateway.commands.replay.event_loop import MakeGate
from gateway.commands.replay.tenants.llm_d import LlmdGate
from gateway.config.origin import nearest
from gateway.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Way:
    """``gate``: makes the gate of a run; None: requests are placed as they come."""

    name: str
    gate: MakeGate | None = None


AT_ONCE = Way("at-once")

WAYS: Mapping[str, Way] = {
    way.name: way
    for way in (
        AT_ONCE,
        Way("llm-d-first-come", partial(LlmdGate, round_robin=False)),
        Way("llm-d-round-robin", partial(LlmdGate, round_robin=True)),
    )
}
"""By name, in the order in which they are shown."""


def ways(names: str) -> list[Way]:
    """Read names of ways, separated by commas; ``all`` stands for all of them. Raises ConfigError."""
    found: dict[str, Way] = {}
    for name in (name.strip() for name in names.split(",") if name.strip()):
        if name == "all":
            found |= WAYS
        elif name in WAYS:
            found[name] = WAYS[name]
        else:
            raise ConfigError(f"--ways: there is no {name!r}{nearest(name, (*WAYS, 'all'))}")
    if not found:
        raise ConfigError("--ways: name at least one")
    return list(found.values())
