"""How a request waits for parts of limits and of a budget that other hosts may have, before it would be refused."""

from __future__ import annotations

from gateway.framework import Clock
from gateway.tenants.places import State
from gateway.tenants.scope import Scope

PATIENCE = 0.025
"""Seconds that a request waits for a part of a limit that other hosts may have: the answer takes 1 ms, and if another
host has to give something back first, three times that; else it would be refused at once."""


async def wait_for_parts(scope: Scope, state: State, clock: Clock, tokens: int, *, begins: bool) -> None:
    """Until there is room, or nothing is to be had anywhere, for ``PATIENCE`` at most: see ``Meter.lacks`` and
    ``Budget.lacks``."""
    if not _lacks(scope, state, clock, tokens, begins=begins):
        return
    until = clock.monotonic() + PATIENCE
    for meter in scope.meters:
        meter.waits(tokens, begins=begins)
    try:
        while _lacks(scope, state, clock, tokens, begins=begins) and (left := until - clock.monotonic()) > 0:
            await state.told(left)
    finally:
        for meter in scope.meters:
            meter.waits(tokens, begins=begins, by=-1)


def _lacks(scope: Scope, state: State, clock: Clock, tokens: int, *, begins: bool) -> bool:
    with state:
        now = clock.monotonic()
        for meter in scope.meters:
            meter.look(now)
        lacking = [meter.lacks(tokens, now, begins=begins) for meter in scope.meters]  # each is asked for
        if scope.budget is not None:
            lacking.append(scope.budget.lacks())
    return any(lacking)
