"""What waits in a queue, as plain values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gateway.framework import Tenant, Waiting
from tests.support.candidates import request


def waiting(
    tenant: str = "a", cost: float = 1.0, arrived: float = 0.0, *, band: int = 0, weight: float = 1.0, **fields: Any
) -> Waiting:
    """``fields``: of ``Waiting``."""
    asked = request(tenant=Tenant(tenant, weight), band=band)
    return Waiting(**{"request": asked, "cost": cost, "tokens": 1000.0, "arrived": arrived, **fields})


class Recorded:
    """An order that writes down what it is told, and answers as given."""

    def __init__(
        self,
        rank: Callable[[Waiting], float] = lambda one: one.arrived,
        turn: Callable[[Waiting], float] = lambda one: one.arrived,
    ) -> None:
        self.told: list[tuple[str, Waiting]] = []
        self.rank, self.turn = rank, turn

    def queued(self, waiting: Waiting, /) -> None:
        self.told.append(("queued", waiting))

    def placed(self, waiting: Waiting, /) -> None:
        self.told.append(("placed", waiting))

    def left(self, waiting: Waiting, /) -> None:
        self.told.append(("left", waiting))

    def settled(self, waiting: Waiting, seconds: float, output: float, /) -> None:
        self.told.append(("settled", waiting))
