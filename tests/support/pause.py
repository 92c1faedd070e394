"""A process that stands still: nobody's wait for luck, but what is tested."""

from __future__ import annotations

import time


def stand_still(seconds: float) -> None:
    """Hold up the loop, as a process does that was stopped: its clock goes on, and none of its tasks."""
    time.sleep(seconds)
