"""The order of a queue, in which no failure of the plugin reaches a request."""

from __future__ import annotations

from collections.abc import Callable

from gateway.core.observer import Observer
from gateway.framework import Order, Waiting


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
        """None, if the order has no such method."""
        try:
            asked = getattr(self._order, "charges", None)
            return {} if asked is None else {key: float(amount) for key, amount in asked().items()}
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
