"""The order ``fair-cost``, the default of queues.

What it does
    Start-time fair queueing (``queues/start_time.py``) between the tenants of a band: of those who wait for an
    endpoint, the tenant goes first that has had the least of all engines' time, by its weight. A request is charged its
    predicted seconds when it is placed, and what it really took is corrected when its answer has ended. Of one tenant's
    requests those that can still meet their objective go first, then those that cannot; in both who arrived first.

Scheduling intent
    Engine time is what tenants take from each other. A cached prompt takes little of it, a long answer much, and both
    have tokens and requests that say nothing of that: beside a tenant with short new prompts, one with long cached
    prompts waited for 3.7 s by cost and for 37 s by tokens (simulated: eight engines of an 8B model on one H100 each).
    Under overload nobody can serve all in time: who is late already waits until the others are placed.

Inputs
    ``cost``, ``late``, ``arrived`` and ``slot`` of what waits; ``band`` and ``tenant`` of the request.

Parameters
    None.

Example
    ``plugins: [{name: fair, type: fair-cost}]``
"""

from __future__ import annotations

from gateway.framework import Context, NoParameters, Waiting
from queues.start_time import StartTimeOrder


class FairCost(StartTimeOrder):
    """By seconds of engines."""

    Parameters = NoParameters

    def __init__(self, parameters: NoParameters, context: Context) -> None:
        super().__init__()

    def charge(self, waiting: Waiting) -> float:
        return waiting.cost

    def spent(self, waiting: Waiting, seconds: float, output: float) -> float:
        return seconds
