"""What is placed at once, while nobody waits: without an entry, and with the little that the queue needs of it when its
answer has ended."""

from __future__ import annotations

import msgspec

from gateway.flow.entry import State, priced
from gateway.flow.live_kv import Held, LiveKv
from gateway.flow.room import Room
from gateway.framework import Plan
from gateway.placement.placing import Placeable


class Placed(msgspec.Struct, eq=False):
    """Made without a call of Python. Its fields are those of an ``Entry``."""

    plan: Plan
    new_tokens: int
    prompt_cost: float
    token_cost: float
    state: State = State.PLACED
    held: Held | None = None


def at_once(call: Placeable, plan: Plan, room: Room, live: LiveKv, now: float) -> Placed | None:
    """While nobody waits, and the queue does not ``counts_all``: whether ``plan``, which was just made for ``call``,
    may be booked. What comes of it is as if it had arrived. None: it has to wait, so let it arrive with this plan.

    If it returned something, book the plan; if that fails, have it ``settled`` with ``computed=0``. ``room``, ``live``:
    the queue's. ``now``: Clock.monotonic().
    """
    if len(plan.legs) == 1:
        if room.binding(plan.decode, call.request, call.keys, now):
            return None
    elif room.lacks(call, plan, now)[0] is not None:
        return None
    held = Held(live, plan.decode, call.keys)
    live.new[held] = held  # as LiveKv.hold has it: nearly every request comes here
    return Placed(plan, *priced(call.request, plan), held=held)
