"""What an autoscaler wants to know of a model, as metrics show it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class RoleView(NamedTuple):
    """A model's endpoints of one role. ``usable``: as many may be used. ``queued``: seconds of prompts that are queued
    there and at the gateway for them. ``kv``: 0.., KV tokens by the memory for them; None: its size is not known.
    ``busy``: as many are busy on average with what is asked; ``wanted``: as many are needed for the objectives."""

    role: str
    usable: int
    queued: float
    kv: float | None
    busy: float
    wanted: int


class ScalingView(NamedTuple):
    """``waiting``: requests that wait at the gateway, for whatever. ``running``: those that are placed and not settled.
    ``saturation``: 0.., how full its usable endpoints are on average. ``ttft``: predicted seconds to the first token of
    a median prompt that would come now; None: no endpoint is usable, or nothing was placed yet."""

    model: str
    waiting: int
    running: int
    saturation: float
    ttft: float | None
    roles: Sequence[RoleView]

    def by_role(self, figure: str) -> Mapping[tuple[str, str], float]:
        """A figure of ``RoleView`` by model and role, where it is known."""
        found = {(self.model, one.role): getattr(one, figure) for one in self.roles}
        return {labels: value for labels, value in found.items() if value is not None}
