"""What a planned request has to wait for: an endpoint without room, or those who wait for it already; and whether it
has to wait for nothing elsewhere."""

from __future__ import annotations

from gateway.flow.driver import Driver
from gateway.flow.entry import Entry
from gateway.flow.lines import Lines
from gateway.flow.room import Room
from gateway.framework import Endpoint, Plan

TURN, DOWN = "turn", "down"
"""Reasons to wait beside an endpoint's bounds: others are before it there; no endpoint is up."""

AVOIDED = 1e3
"""Seconds of work ahead at an endpoint that is not to be chosen: more than any other costs."""


def obstacle(
    entry: Entry, plan: Plan, room: Room, lines: Lines[Entry], now: float, *, first: bool = False
) -> tuple[Endpoint | None, str]:
    """The endpoint for which it has to wait by ``plan``, and why; (None, ""): for none. ``first``: it is the first
    where it waits. ``now``: Clock.monotonic().

    Nobody passes those who wait for an endpoint of the plan; but of a plan of several, whoever arrived first passes, or
    two could wait for each other.
    """
    assert entry.call is not None
    where, reason = room.lacks(entry.call, plan, now)
    if where is not None or not lines:
        return where, reason
    for _, endpoint in plan.legs:
        if first and endpoint is entry.where:
            continue
        other = lines.first(endpoint.slot)
        if other is None or other is entry:
            continue
        before = (-other.request.band, other.arrived) < (-entry.request.band, entry.arrived)
        if before or len(plan.legs) == 1:
            return endpoint, TURN
    return None, ""


def elsewhere(entry: Entry, driver: Driver, room: Room, lines: Lines[Entry], now: float) -> Plan | None:
    """A plan of endpoints with room, without the one for which it waits; None: the best of the others has none.
    ``now``: Clock.monotonic().

    What was planned for it is cheaper, or it would wait there: so that is for one that would be late where it waits.
    """
    entry.request.ahead = {**lines.ahead(entry.request), entry.slot: AVOIDED}
    try:
        plan = driver.decide(entry)
    except Exception:  # it goes on waiting where it does
        return None
    if any(endpoint is entry.where for _, endpoint in plan.legs):
        return None
    return plan if obstacle(entry, plan, room, lines, now)[0] is None else None
