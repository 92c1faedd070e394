"""A model's queue as metrics and explanations show it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class EndpointRoom(NamedTuple):
    """``saturation``: how full the endpoint is by its fullest bound; 1 and more is full. ``reason``: which bound it has
    no room by; empty: it has room. ``factor``: of its window, at most 1: lower where its first tokens come late."""

    endpoint: str
    saturation: float
    reason: str
    factor: float


class QueueView(NamedTuple):
    """``waiting``: requests by band. ``seconds``: engine time that what waits would take, as predicted. ``oldest``:
    seconds for which the oldest has waited; 0: none waits. ``rooms``: of the endpoints that are up."""

    model: str
    waiting: Mapping[int, int]
    seconds: float
    oldest: float
    rooms: Sequence[EndpointRoom]
