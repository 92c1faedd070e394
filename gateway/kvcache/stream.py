"""One endpoint's KV events, followed for as long as it is there, whatever fails.

What fails in us is treated like a restart of the engine: what is known is forgotten, since nobody can tell how much of
it was applied, and read anew after a rest. The endpoint is estimated meanwhile.
"""

from __future__ import annotations

import asyncio
import errno
import logging

import zmq

from gateway.framework import Clock, Observer, TaskSet
from gateway.kvcache.following import Following
from gateway.kvcache.index import CacheIndex
from gateway.kvcache.settings import CacheSettings
from gateway.kvcache.sockets import EventSource

log = logging.getLogger("kvgate.kvcache")

REST = 0.5
"""Seconds from a failure of ours to the next try; each time twice as many."""

LONGEST_REST = 300.0
"""Seconds: what fails each time is in the engine's history, and reading that costs seconds of a core."""

PASSING = frozenset({errno.EADDRINUSE, errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Why an address may be out of use for a while; for any other reason it is none."""


class EventStream:
    """Follows one endpoint's events into ``index``, from ``start`` to ``close``.

    ``source``: of its messages. ``rank``: as the engine numbers its ranks; None: not known. ``replay``: address of the
    engine's ROUTER socket; without it nothing from before the subscription is ever known. ``synced`` is set while the
    history has been read, as far as there is one. The state told to the observer: ``connecting``, ``live``,
    ``partial``, or ``off`` where an address cannot be one.
    """

    def __init__(
        self,
        slot: int,
        endpoint_name: str,
        source: EventSource,
        replay: str | None,
        rank: int | None,
        index: CacheIndex,
        observer: Observer,
        clock: Clock,
        settings: CacheSettings,
    ) -> None:
        self.synced = asyncio.Event()
        self._slot = slot
        self._name = endpoint_name
        self._source = source
        self._replay = replay
        self._rank = rank
        self._index = index
        self._observer = observer
        self._clock = clock
        self._settings = settings
        self._tasks: TaskSet | None = None
        self._task: asyncio.Task[None] | None = None
        self._state = ""
        self._following = self._begin()

    @property
    def last(self) -> int:
        """Number of the last message that was applied; -1: none."""
        return self._following.last

    @property
    def heard_at(self) -> float | None:
        """Clock.monotonic() of the last live message; None: none came."""
        return self._following.heard_at

    @property
    def state(self) -> str:
        return self._state

    def start(self, tasks: TaskSet) -> None:
        self._tasks = tasks
        self._task = tasks.start(self._run(), name=f"KV events of {self._name}")

    def restart(self) -> None:
        """The engine is another process, or the index has to be told everything again: forget, and begin anew."""
        self._index.forget(self._slot)
        if self._task is not None and self._tasks is not None:
            self._following.end()
            self._task.cancel()
            self.synced.clear()
            self._following = self._begin()
            self.start(self._tasks)

    def fell_asleep(self) -> None:
        """The engine has reset its GPU's cache, after all that it has said so far; it will say so when it wakes up."""
        self._following.fell_asleep()

    async def close(self) -> None:
        """Ends the stream; safe before ``start`` and more than once. Nobody waits for its history any more."""
        self._tasks = None
        self.synced.set()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _begin(self) -> Following:
        return Following(
            self._slot,
            self._name,
            self._replay,
            self._rank,
            self._index,
            self._observer,
            self._clock,
            self._settings,
            self._tell,
            self.synced,
        )

    async def _run(self) -> None:
        failures, began = 0, 0.0
        while True:
            self._tell("connecting")
            opened = False
            try:
                if failures:
                    try:
                        self._forget()
                    finally:
                        await asyncio.sleep(_rest(failures))
                began = self._clock.monotonic()
                with self._source.open() as inlet:
                    opened = True
                    await self._following.follow(inlet)
            except Exception as error:
                if asyncio.current_task() is not self._task:
                    raise  # our successor follows
                if not opened and isinstance(error, zmq.ZMQError) and error.errno not in PASSING:
                    log.error("KV events of %s cannot be followed at %s: %s", self._name, self._source, error)
                    self._index.set_events(self._slot, False)
                    self._tell("off")
                    self.synced.set()
                    return
                failures = failures + 1 if self._clock.monotonic() - began < LONGEST_REST else 1
                trace = None if isinstance(error, zmq.ZMQError) else error
                text = "KV events of %s: %r: they are forgotten, and read anew in %g s"
                log.error(text, self._name, error, _rest(failures), exc_info=trace)
                self._observer.kv_events(self._name, "failed", 1)
                self.synced.set()

    def _forget(self) -> None:
        """Nothing that its events told counts, and until they tell again it is estimated."""
        before, self._following = self._following, self._begin()
        before.end()
        self._following.asleep = before.asleep
        self._index.set_events(self._slot, False)
        self._index.set_events(self._slot, True)

    def _tell(self, state: str) -> None:
        if state != self._state:
            self._state = state
            self._observer.kv_stream(self._name, state)


def _rest(failures: int) -> float:
    """Seconds, after so many in a row."""
    return min(REST * 2.0 ** min(failures - 1, 20), LONGEST_REST)
