"""Who waits for an engine to have room, and who of them is next: the contract of the plugins of ``kvgate.queues``.

A model with a queue (``models[].queue``) holds a request until the endpoint that it is planned for has room. Of those
who wait for one endpoint, the one that is placed next is found in three steps:

1. the highest *band* (``Request.band``) with somebody in it; bands are strict, and no plugin's;
2. in that band the *tenant* (``Request.tenant``) whose first request has the least ``Order.turn``;
3. of that tenant's requests the one with the least ``Order.rank``.

At equal numbers, who arrived first is first.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Protocol

from gateway.framework.request import Request

NOWHERE = -1
"""The ``slot`` of a request that waits for no endpoint."""


@dataclass(slots=True, eq=False)
class Waiting:
    """A request that waits, or that would if there were no room.

    ``cost``: predicted seconds of an engine's time, at least 0: of its prompt and of its answer, on the endpoint that
    it is planned for. ``tokens``: prompt tokens that this endpoint has to compute, and expected output tokens.
    ``arrived``, ``due``, ``deadline``: Clock.monotonic(). ``due``: the last moment at which it can be placed and still
    meet its objective, as predicted; inf: always. ``deadline``: when it must be gone; inf: never. ``late``: ``due`` has
    passed. ``slot``: ``endpoint.slot`` of the endpoint for which it waits, or on which it was placed. ``size``: bytes
    that are held for it while it waits.
    """

    request: Request
    cost: float
    tokens: float
    arrived: float
    due: float = inf
    deadline: float = inf
    late: bool = False
    slot: int = NOWHERE
    size: int = 0


class Order(Protocol):
    """Who of those who wait is next. One instance for each model.

    If a method raises, or returns what is no number, the failure is counted (``kvgate_plugin_failures_total``) and who
    arrived first is first, for this one call.

    A request that waits is reported so: ``queued`` once, then ``left`` or ``placed``, once. If it is planned for
    another endpoint meanwhile, it has ``left`` the one and is ``queued`` for the other, with another ``slot``, ``cost``
    and ``tokens``. A request that finds room at once is ``queued`` and ``placed`` in one step. What was ``placed`` is
    ``settled`` once, when its answer has ended or failed.

    An order that keeps nothing of what is placed while nobody waits may say so with a class attribute
    ``lends_idle = True``. It is not told of such requests then, which spares each of them some microseconds.

    Where replicas of this gateway have a queue of this model each, two more methods make their orders as one, if it has
    them. ``charges() -> dict[tuple[int, str], float]``: what tenants were charged since the last call, by band and
    name. ``charged_elsewhere(band: int, tenant: str, amount: float) -> None``: another replica's order has charged so
    much. ``charges`` is called about once a second, ``charged_elsewhere`` for each charge of each replica.
    """

    def queued(self, waiting: Waiting, /) -> None:
        """It begins to wait for the endpoint ``waiting.slot``."""
        ...

    def rank(self, waiting: Waiting, /) -> float:
        """Its place among its tenant's requests for this endpoint in this band: least first. Asked once it is queued,
        and again when it has become ``late``."""
        ...

    def turn(self, waiting: Waiting, /) -> float:
        """The place of a tenant, whose first request this is, among the tenants for this endpoint in this band: least
        first.

        Asked again before a tenant is chosen, when another of its requests is its first, and when one of them was
        placed on this endpoint, or settled on any. So until then it may grow with time or by what others do, but must
        not become less.
        """
        ...

    def placed(self, waiting: Waiting, /) -> None:
        """It goes to the endpoint ``waiting.slot``: charge its tenant."""
        ...

    def left(self, waiting: Waiting, /) -> None:
        """It waits there no more, and was not placed: no charge."""
        ...

    def settled(self, waiting: Waiting, seconds: float, output: float, /) -> None:
        """What was placed has ended. It took so many seconds of the engine's time, and has so many output tokens:
        correct what was charged for it, of which ``waiting.cost`` is the seconds, and ``waiting.request`` has the
        tokens that were expected."""
        ...
