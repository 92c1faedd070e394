"""What was placed at once, while nobody waited: the little that the queue needs of it when its answer has ended."""

from __future__ import annotations

import msgspec

from gateway.flow.entry import State
from gateway.flow.live_kv import Held
from gateway.framework import Plan


class Placed(msgspec.Struct, eq=False):
    """Made without a call of Python, by ``HeldQueue.at_once``. Its fields are those of an ``Entry``."""

    plan: Plan
    new_tokens: int
    prompt_cost: float
    token_cost: float
    state: State = State.PLACED
    held: Held | None = None
