"""Follows the KV events of one endpoint for as long as it is there, whatever fails.

A failure of ours is treated like a restart of the engine: what is known is cleared, since it is unknown how much of it
was applied, and read again after a pause. The endpoint is approximated meanwhile.
"""

from __future__ import annotations

import asyncio
import errno
import logging

import zmq

from gateway.core.tasks import TaskSet
from gateway.kvcache.events.reader import EventReader
from gateway.kvcache.events.sockets import EventSource
from gateway.kvcache.events.target import EventTarget

log = logging.getLogger("kvgate.kvcache")

REST = 0.5
"""Seconds from a failure of ours to the next try; each time twice as many."""

LONGEST_REST = 300.0
"""Seconds: what fails each time is in the engine's history, and reading that costs seconds of a core."""

PASSING = frozenset({errno.EADDRINUSE, errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Why an address may be out of use for a while; for any other reason it cannot be one."""


class EventStream:
    """Follows the events of ``target`` as they come from ``source``, from ``start`` to ``close``.

    ``synced``: set while the history has been read, if there is one. ``state``, which is reported to the observer:
    ``connecting``, ``live``, ``partial``, or ``off`` if an address is not valid.
    """

    def __init__(self, target: EventTarget, source: EventSource) -> None:
        self.synced = asyncio.Event()
        self.state = ""
        self._target = target
        self._source = source
        self._tasks: TaskSet | None = None
        self._task: asyncio.Task[None] | None = None
        self._reader = EventReader(target, self._report_state, self.synced)

    @property
    def last(self) -> int:
        """Number of the last message that was applied; -1: none."""
        return self._reader.last

    @property
    def heard_at(self) -> float | None:
        """Clock.monotonic() of the last live message; None: none came."""
        return self._reader.heard_at

    def start(self, tasks: TaskSet) -> None:
        before, self._tasks = self._task, tasks
        self._task = tasks.start(self._run(before), name=f"KV events of {self._target.name}")

    def restart(self) -> None:
        """The engine is another process, or the index was rekeyed: clear what is known, and begin anew."""
        self._target.index.clear(self._target.slot)
        if self._task is not None and self._tasks is not None:
            self._task.cancel()
            self.synced.clear()
            self._reader = EventReader(self._target, self._report_state, self.synced)
            self.start(self._tasks)

    def fell_asleep(self) -> None:
        """The engine has reset its GPU cache, after all that it has sent so far; it will report that when it wakes
        up."""
        self._reader.fell_asleep()

    async def close(self) -> None:
        """End the stream; safe before ``start`` and more than once. Its history is not waited for any more."""
        self._tasks = None
        self.synced.set()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._target.index.set_replaying(self._target.slot, False)

    async def _run(self, before: asyncio.Task[None] | None) -> None:
        """``before``: what followed the events so far, and was cancelled: it has yet to close the source."""
        if before is not None:
            await asyncio.wait([before])
        failures, began = 0, 0.0
        while True:
            self._report_state("connecting")
            opened = False
            try:
                if failures:
                    try:
                        self._forget()
                    finally:
                        await asyncio.sleep(_rest(failures))
                began = self._target.clock.monotonic()
                with self._source.open() as inbox:
                    opened = True
                    await self._reader.read(inbox)
            except Exception as error:
                if (task := asyncio.current_task()) is not None and task.cancelling():
                    raise  # it was cancelled, and its sockets could not be closed
                if not opened and isinstance(error, zmq.ZMQError) and error.errno not in PASSING:
                    log.error("KV events of %s cannot be followed at %s: %s", self._target.name, self._source, error)
                    self._target.index.set_events(self._target.slot, False)
                    self._report_state("off")
                    self.synced.set()
                    return
                failures = failures + 1 if self._target.clock.monotonic() - began < LONGEST_REST else 1
                trace = None if isinstance(error, zmq.ZMQError) else error
                text = "KV events of %s: %r: they are forgotten, and read anew in %g s"
                log.error(text, self._target.name, error, _rest(failures), exc_info=trace)
                self._target.observer.kv_events(self._target.name, "failed", 1)
                self.synced.set()

    def _forget(self) -> None:
        """Nothing that its events reported counts; until they do so again, the endpoint is approximated."""
        before = self._reader
        self._reader = EventReader(self._target, self._report_state, self.synced)
        self._reader.asleep = before.asleep
        self._target.index.set_events(self._target.slot, False)
        self._target.index.set_events(self._target.slot, True)

    def _report_state(self, state: str) -> None:
        if state != self.state:
            self.state = state
            self._target.observer.kv_stream(self._target.name, state)


def _rest(failures: int) -> float:
    """Seconds of pause after so many failures in a row."""
    return min(REST * 2.0 ** min(failures - 1, 20), LONGEST_REST)
