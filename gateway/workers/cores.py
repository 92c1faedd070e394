"""How many workers ``listen.workers`` means on this machine."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Literal

CPU_MAX = Path("/sys/fs/cgroup/cpu.max")
"""What a container's CPU limit is, as the container itself sees it: quota and period, or ``max``."""


def worker_count(workers: int | Literal["auto"]) -> int:
    """``auto``: one for each core that this process may use, at least 1."""
    return usable_cores() if workers == "auto" else workers


def usable_cores(cpu_max: Path = CPU_MAX) -> int:
    """The cores that this process may run on; fewer where its container has a limit (a part of a core counts as one).
    At least 1."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        cores = os.cpu_count() or 1
    try:
        quota, _, period = cpu_max.read_text().partition(" ")
        cores = min(cores, math.ceil(int(quota) / int(period)))
    except (OSError, ValueError, ZeroDivisionError):  # no such file, or no limit in it
        pass
    return max(1, cores)
