"""A request's place in its model's queue, as its attempts and its timeline see it: what they tell the queue."""

from __future__ import annotations

from typing import Protocol

from gateway.fleet.load.booking import Booking
from gateway.framework import Endpoint, Plan
from gateway.kvcache.index.keys import BlockKeys


class InQueue(Protocol):
    """Of a request that came through a queue. It is told what happens to it afterwards, since that makes room."""

    def first_token(self, booking: Booking, at: float) -> None:
        """The first token of its answer came at ``at`` (Clock.monotonic())."""

    def freed(self, endpoint: Endpoint) -> None:
        """A prefill leg of it has left ``endpoint``."""

    def placed_again(self, plan: Plan, keys: BlockKeys) -> None:
        """An attempt of it failed, and it was placed by ``plan`` without waiting. ``keys``: its prompt's."""

    def ended(self) -> None:
        """However: it has given back all that was booked. Called once."""
