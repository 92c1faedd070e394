"""Who has the requests that a queue holds: the proxy, or a replay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gateway.flow.entry import Entry
from gateway.framework import Endpoint, Plan


class Driver(Protocol):
    """No method waits for anything, or calls the queue."""

    def endpoints(self) -> Sequence[Endpoint]:
        """Of the model, up or not."""
        ...

    def decide(self, entry: Entry) -> Plan:
        """Match again and schedule, on what is true now: ``placement.placing.decide``. Raises GatewayError."""
        ...

    def place(self, entry: Entry, plan: Plan) -> None:
        """Book the plan, and wake the request up; also within ``HeldQueue.arrive``. If it raises, nothing is booked."""
        ...

    def refuse(self, entry: Entry, error: Exception) -> None:
        """It has waited in vain. Also within ``HeldQueue.arrive``, whose newcomer may take its place."""
        ...
