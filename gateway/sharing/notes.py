"""Notes of those who remember: what one worker of a host has learned of a session or a response, the others know, too.

Rules: a note is bytes of whoever writes it, under its name; it is told at once, and heard by its like in the other
workers. Who joins hears all that is remembered, from the lowest of those that were there before, a little at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import msgspec

from gateway.core.tasks import TaskSet
from gateway.sharing.siblings import Change, Siblings

TOPIC = "note"

_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(tuple[str, bytes])


class Notes:
    """``hear``: called with the name and the note that another worker tells. ``remembered``: all notes, with their
    names, that one who knows nothing must hear; it is gone through slowly, so that each should be a millisecond's
    work at most."""

    def __init__(
        self,
        siblings: Siblings,
        hear: Callable[[str, bytes], None],
        remembered: Callable[[], Iterable[tuple[str, bytes]]],
    ) -> None:
        self._siblings = siblings
        self._hear = hear
        self._remembered = remembered
        self._tasks = TaskSet()
        siblings.hear(TOPIC, self._heard)
        siblings.watch(self._look)

    def tell(self, name: str, note: bytes) -> None:
        self._siblings.tell(TOPIC, _ENCODER.encode((name, note)))

    async def close(self) -> None:
        await self._tasks.close()

    def _heard(self, number: int, message: bytes) -> None:
        self._hear(*_DECODER.decode(message))

    def _look(self, change: Change) -> None:
        there = self._siblings.live - change.joined
        if self._siblings.number == min(there, default=None):
            for number in change.joined:
                self._tasks.start(self._tell_all(number), name=f"tell worker {number} what is remembered")

    async def _tell_all(self, number: int) -> None:
        for name, note in self._remembered():
            if not self._siblings.tell_one(number, TOPIC, _ENCODER.encode((name, note))):
                return
            await asyncio.sleep(0)
