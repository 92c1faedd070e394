"""The ways to let requests wait that are compared. Behind each of them requests are placed by the same policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from gateway.commands.replay.event_loop import MakeGate
from gateway.commands.replay.policies import Policy
from gateway.commands.replay.tenants.held import HeldGate
from gateway.commands.replay.tenants.llm_d import LlmdGate
from gateway.config.origin import nearest
from gateway.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Way:
    """``order``: of kvgate's queue, the type of a plugin of ``kvgate.queues``; empty: it is another router's way, and
    ``make`` makes its gate (None: requests are placed as they come)."""

    name: str
    order: str = ""
    make: MakeGate | None = None

    def gate(self, policy: Policy) -> MakeGate | None:
        """Makes the gate of a run behind which ``policy`` places the requests; None: there is no gate."""
        return partial(HeldGate, policy=policy, order=self.order) if self.order else self.make


ORDERS = ("fair-cost", "fair-tokens", "fair-requests", "earliest-deadline", "first-come")
"""The built-in orders of a queue, the default first."""

AT_ONCE = Way("at-once")

WAYS: Mapping[str, Way] = {
    way.name: way
    for way in (
        AT_ONCE,
        Way("llm-d-first-come", make=partial(LlmdGate, round_robin=False)),
        Way("llm-d-round-robin", make=partial(LlmdGate, round_robin=True)),
        *(Way(order, order) for order in ORDERS),
    )
}
"""By name, in the order in which they are shown: others' ways, then our queue with each of its orders."""

OURS = frozenset(way.name for way in WAYS.values() if way.order)
"""Names of the ways with our queue."""


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
