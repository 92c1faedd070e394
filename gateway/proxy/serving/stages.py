"""Lets the requests that came in one turn of the event loop go through their way together, stage by stage: all are
parsed, then all are tokenized, then all are placed, then all are sent.

The processor's caches have no room for what all stages touch. So the second request in a stage costs less than the
first, and a busy gateway has several in a turn. Between two stages the loop reads its sockets: streams wait for one
stage of these requests, and not for their whole way.
"""

from __future__ import annotations

import asyncio


class Stages:
    """One for each loop. ``waiting``: requests that have come and were not begun yet, and those that wait for their
    peers before their next stage. Where there is none, nobody waits."""

    __slots__ = ("waiting",)

    def __init__(self) -> None:
        self.waiting = 0

    async def wait_for_peers(self) -> None:
        """Let the others come as far as the caller: the next stage begins with the loop's next turn."""
        self.waiting += 1
        try:
            await asyncio.sleep(0)
        finally:
            self.waiting -= 1
