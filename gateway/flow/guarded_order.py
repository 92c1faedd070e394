"""The order of a queue, in which no failure of the plugin reaches a request."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import Any

from gateway.core.observer import Observer
from gateway.framework import Order, Waiting

LONGEST_NAME = 256
"""Characters of a tenant's name. Other replicas take no message with a longer one (``sharing/messages.py``)."""

FARTHEST_BAND = 1 << 31
"""More than any configuration has. A message has no place for an integer of more than 64 bits."""


class GuardedOrder:
    """An ``Order`` that never raises, and returns numbers only.

    If the plugin's ``rank`` or ``turn`` raises, or returns what is no number, who arrived first is first. Each failure
    is counted. ``lends_idle``: see ``Order``.
    """

    def __init__(self, order: Order, name: str, observer: Observer) -> None:
        """``name``: of the plugin's instance."""
        self._order = order
        self.lends_idle = bool(getattr(order, "lends_idle", False))
        self._name = name
        self._observer = observer

    def queued(self, waiting: Waiting, /) -> None:
        try:
            self._order.queued(waiting)
        except Exception as error:
            self._failed(error)

    def rank(self, waiting: Waiting, /) -> float:
        return self._number(self._order.rank, waiting)

    def turn(self, waiting: Waiting, /) -> float:
        return self._number(self._order.turn, waiting)

    def placed(self, waiting: Waiting, /) -> None:
        try:
            self._order.placed(waiting)
        except Exception as error:
            self._failed(error)

    def left(self, waiting: Waiting, /) -> None:
        try:
            self._order.left(waiting)
        except Exception as error:
            self._failed(error)

    def settled(self, waiting: Waiting, seconds: float, output: float, /) -> None:
        try:
            self._order.settled(waiting, seconds, output)
        except Exception as error:
            self._failed(error)

    def charges(self) -> dict[tuple[int, str], float]:
        """Empty, if the order has no such method, or if any of what it returns cannot be told to other replicas."""
        try:
            asked = getattr(self._order, "charges", None)
            return {} if asked is None else dict(_charge(*one) for one in asked().items())
        except Exception as error:
            self._failed(error)
            return {}

    def charged_elsewhere(self, band: int, tenant: str, amount: float, /) -> None:
        try:
            told = getattr(self._order, "charged_elsewhere", None)
            if told is not None:
                told(band, tenant, amount)
        except Exception as error:
            self._failed(error)

    def _number(self, method: Callable[[Waiting], float], waiting: Waiting) -> float:
        try:
            number = method(waiting)
            if number != number or not isinstance(number, int | float):
                raise TypeError(f"{method.__name__} must return a number, not {number!r}")
        except Exception as error:
            self._failed(error)
            return waiting.arrived
        return number

    def _failed(self, error: BaseException) -> None:
        self._observer.plugin_failed("queue", self._name, error)


def _charge(key: Any, amount: Any) -> tuple[tuple[int, str], float]:
    """One of what an order's ``charges`` returned; raises what it may, unless other replicas will take it."""
    band, tenant = key
    number = float(amount)
    # A bool is no integer in a message. A lone surrogate, which cannot be encoded, is not printable.
    is_band = type(band) is int and abs(band) < FARTHEST_BAND
    is_name = type(tenant) is str and len(tenant) <= LONGEST_NAME and tenant.isprintable()
    if not (is_band and is_name and isfinite(number)):
        raise ValueError(f"charges must return finite numbers by band and tenant, not {key!r:.300}: {amount!r:.300}")
    return (band, tenant), number
