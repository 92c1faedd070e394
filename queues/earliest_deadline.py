"""The order ``earliest-deadline``.

What it does
    In each band that request is first whose objective is missed soonest if it waits on, whatever its tenant. Those that
    cannot meet their objective any more come after all that can, again by the moment at which it was missed.

    Source: earliest deadline first (Liu and Layland, JACM 1973), but for the late ones: under overload it would serve
    those first that are late already, and make all the others late.

Scheduling intent
    Requests with different objectives of one owner: what a person waits for goes before what a batch waits for, and
    still no batch waits for ever, as its own time comes. There are no shares: between teams, use ``fair-cost``.

Inputs
    ``due``, ``late`` and ``arrived`` of what waits. Without an objective, ``due`` is by the queue's ``target``.

Parameters
    None.

Example
    ``plugins: [{name: urgent, type: earliest-deadline}]``
"""

from __future__ import annotations

from gateway.framework import Context, NoParameters, Waiting
from queues.start_time import LATE


class EarliestDeadline:
    """By due time. It remembers nothing."""

    lends_idle = True

    Parameters = NoParameters

    def __init__(self, parameters: NoParameters, context: Context) -> None: ...

    def queued(self, waiting: Waiting, /) -> None: ...

    def rank(self, waiting: Waiting, /) -> float:
        return waiting.due + LATE if waiting.late else waiting.due

    def turn(self, waiting: Waiting, /) -> float:
        return self.rank(waiting)

    def placed(self, waiting: Waiting, /) -> None: ...

    def left(self, waiting: Waiting, /) -> None: ...

    def settled(self, waiting: Waiting, seconds: float, output: float, /) -> None: ...
