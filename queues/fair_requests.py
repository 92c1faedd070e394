"""The order ``fair-requests``.

What it does
    As ``fair-cost``, but each request is charged the same. With equal weights the tenants that wait for an endpoint
    take turns there (round robin).

Scheduling intent
    A baseline to compare with: what gateways do that do not know what a request costs. A tenant with long prompts takes
    more than others.

Inputs
    ``late``, ``arrived`` and ``slot`` of what waits; ``band`` and ``tenant`` of the request.

Parameters
    None.

Example
    ``plugins: [{name: turns, type: fair-requests}]``
"""

from __future__ import annotations

from gateway.framework import Context, NoParameters, Waiting
from queues.start_time import StartTimeOrder


class FairRequests(StartTimeOrder):
    """By requests."""

    Parameters = NoParameters

    def __init__(self, parameters: NoParameters, context: Context) -> None:
        super().__init__()

    def charge(self, waiting: Waiting) -> float:
        return 1.0

    def spent(self, waiting: Waiting, seconds: float, output: float) -> float:
        return 1.0
