"""The environment of the processes that these tests start, and where their threads run."""

from __future__ import annotations

import os
from contextlib import suppress

from gateway.commands.processes import Process, group_members


def clean_environment(*, without: tuple[str, ...]) -> dict[str, str]:
    """This process's environment without the variables whose names begin so."""
    return {name: value for name, value in os.environ.items() if not name.startswith(without)}


def unpin(process: Process) -> None:
    """Let every thread of the process's group run on any of our cores, whatever it has bound itself to."""
    cores = os.sched_getaffinity(0)
    for member in group_members(process.pid):
        with suppress(FileNotFoundError, ProcessLookupError):
            for task in (member / "task").iterdir():
                with suppress(ProcessLookupError):
                    os.sched_setaffinity(int(task.name), cores)
