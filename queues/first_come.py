"""The order ``first-come``.

What it does
    Who arrived first is first, in each band, whatever its tenant and its objective.

Scheduling intent
    One tenant, or tenants that trust each other, at loads that never last: a short burst is answered in the order in
    which it came. Under overload that lasts every answer is late, and the tenant that sends most is served most.

Inputs
    ``arrived`` of what waits.

Parameters
    None.

Example
    ``plugins: [{name: line, type: first-come}]``
"""

from __future__ import annotations

from gateway.framework import Context, NoParameters, Waiting


class FirstCome:
    """By arrival. It remembers nothing."""

    lends_idle = True

    Parameters = NoParameters

    def __init__(self, parameters: NoParameters, context: Context) -> None: ...

    def queued(self, waiting: Waiting, /) -> None: ...

    def rank(self, waiting: Waiting, /) -> float:
        return waiting.arrived

    def turn(self, waiting: Waiting, /) -> float:
        return waiting.arrived

    def placed(self, waiting: Waiting, /) -> None: ...

    def left(self, waiting: Waiting, /) -> None: ...

    def settled(self, waiting: Waiting, seconds: float, output: float, /) -> None: ...
