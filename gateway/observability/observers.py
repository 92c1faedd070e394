"""Several observers as one: metrics, and the log."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

from gateway.core.observer import Observer

METHODS = tuple(name for name, value in vars(Observer).items() if callable(value) and not name.startswith("_"))


class Observers(Observer):
    """Calls each of ``observers`` in order. No observer may raise.

    A method is bound once to the observers that implement it, and directly if there is one: what only metrics count
    costs no more because there is a log.
    """

    def __init__(self, *observers: Observer) -> None:
        for name in METHODS:
            bound = [getattr(observer, name) for observer in observers]
            interested = [method for method in bound if getattr(method, "__func__", None) is not vars(Observer)[name]]
            if interested:
                setattr(self, name, reduce(_both, interested))


def _both(first: Callable[..., None], second: Callable[..., None]) -> Callable[..., None]:
    def call_both(*args: Any, **kwargs: Any) -> None:
        first(*args, **kwargs)
        second(*args, **kwargs)

    return call_both
