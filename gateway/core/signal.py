"""Wakes the one task that waits for something."""

from __future__ import annotations

import asyncio


class Signal:
    """As asyncio.Event, for one waiter, which clears it; with a timeout that costs no task."""

    def __init__(self) -> None:
        self._is_set = False
        self._waiter: asyncio.Future[None] | None = None

    @property
    def waited_for(self) -> bool:
        """Someone waits for it: what was there before is done."""
        return self._waiter is not None and not self._waiter.done()

    def set(self) -> None:
        self._is_set = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, and clear it. False if it was not set within ``timeout`` seconds."""
        if not self._is_set:
            loop = asyncio.get_running_loop()
            waiter = self._waiter = loop.create_future()
            timer = None if timeout is None else loop.call_later(timeout, _give_up, waiter)
            try:
                await waiter
            finally:
                self._waiter = None
                if timer is not None:
                    timer.cancel()
        was_set, self._is_set = self._is_set, False
        return was_set


def _give_up(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
