"""When a process ends: of one that serves, and of a parent of workers, which imports no more of serving."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any

from gateway.core.tasks import TaskSet
from gateway.workers import words
from gateway.workers.post import Post


class End:
    """When this process is to end: a signal, or another process that has taken over.

    ``stop``: set by SIGTERM, SIGINT or the caller. ``hurry``: by a second signal. ``patient``: SIGTERM came, whose
    sender may still send clients here for a while. At SIGINT a person waits.
    """

    def __init__(self, stop: asyncio.Event | None, post: Post | None) -> None:
        """``post``: of a worker, whose parent says how to end."""
        self.stop = stop or asyncio.Event()
        self.hurry = asyncio.Event()
        self._post = post
        self._patient = False

    @property
    def patient(self) -> bool:
        return self._patient or (self._post is not None and words.PATIENT in self._post.told)

    def on(self, number: int) -> None:
        # A service manager may send its signal to workers, too: a second one is no hurry then: their parent says so.
        if self.stop.is_set() and self._post is None:
            self.hurry.set()
        self._patient = self._patient or number == signal.SIGTERM
        self.stop.set()


async def first(tasks: TaskSet, *awaited: asyncio.Future[Any] | asyncio.Event | Coroutine[Any, Any, Any]) -> None:
    """Wait until one of these has ended or is set. Tasks for it are among ``tasks``."""
    waiting: list[asyncio.Future[Any]] = []
    for one in awaited:
        if not isinstance(one, asyncio.Future):
            one = tasks.start(one.wait() if isinstance(one, asyncio.Event) else one, name="wait")
        waiting.append(one)
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
