"""A loop's time in which the machine's pauses do not count."""

from __future__ import annotations

import asyncio

import pytest

LONGEST = 0.05
"""Seconds that may pass between two looks at the time. A shorter wait than this is as long as ever."""


def pace(patch: pytest.MonkeyPatch) -> None:
    """Have the running loop's time go on by no more than ``LONGEST`` at once, until ``patch`` is undone.

    Where a timer must be renewed before it ends, in the test's own loop, a busy machine that holds up the process for
    longer than the timer runs would otherwise end it. The loop must be asyncio's: uvloop keeps its time in C.
    """
    loop = asyncio.get_running_loop()
    real = loop.time
    seen = shown = real()

    def time() -> float:
        nonlocal seen, shown
        now = real()
        shown += min(now - seen, LONGEST)
        seen = now
        return shown

    patch.setattr(loop, "time", time)
