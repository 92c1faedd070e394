"""Background tasks that cannot be lost: each has a name, is kept, and reports how it failed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

log = logging.getLogger("kvgate.tasks")


class TaskSet:
    """Owns tasks; ``close`` cancels them and waits for their end."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, coroutine: Coroutine[Any, Any, Any], *, name: str, awaited: bool = False) -> asyncio.Task[Any]:
        """``awaited``: the caller awaits the task and handles its failure, so that it is not logged here."""
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard if awaited else self._done)
        return task

    async def wait(self, seconds: float) -> None:
        """Wait until all tasks that there are have ended, for so many seconds at most."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def __len__(self) -> int:
        return len(self._tasks)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("task %s failed: %r", task.get_name(), error, exc_info=error)
