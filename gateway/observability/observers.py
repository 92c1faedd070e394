"""Several observers as one: metrics, and the log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gateway.framework import Observer

METHODS = tuple(name for name, value in vars(Observer).items() if callable(value) and not name.startswith("_"))


class Observers(Observer):
    """Tells each of ``observers`` in order.

    A method is bound once to those who implement it, and directly if that is a single one: what only metrics count
    costs nothing more for there being a log. No observer may raise.
    """

    def __init__(self, *observers: Observer) -> None:
        for name in METHODS:
            bound = [getattr(observer, name) for observer in observers]
            interested = [method for method in bound if getattr(method, "__func__", None) is not vars(Observer)[name]]
            if len(interested) == 1:
                setattr(self, name, interested[0])
            elif interested:
                setattr(self, name, _tell_all(interested))


def _tell_all(listeners: list[Callable[..., None]]) -> Callable[..., None]:
    if len(listeners) == 2:  # metrics and the log, which both hear of every request
        first, second = listeners

        def tell_both(*args: Any, **kwargs: Any) -> None:
            first(*args, **kwargs)
            second(*args, **kwargs)

        return tell_both

    def tell(*args: Any, **kwargs: Any) -> None:
        for listener in listeners:
            listener(*args, **kwargs)

    return tell
