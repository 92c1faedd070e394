"""One endpoint's KV events, from its engine to the index, healed where they break.

Rules: subscribe first, replay second, then live, so that nothing falls between. Messages count from 0 in each engine
process. What is missing is asked for again; a number that goes back is another process, and so is a connection that
comes back and does not know our last message: forget, and begin anew. History that has left the engine's buffer makes
the endpoint *partial*: what is known is right, but not all. Work on the loop is done in slices, since a busy thread
stalls every stream that the gateway relays.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import aclosing
from enum import Enum

import zmq
import zmq.asyncio
from msgspec.structs import replace
from xxhash import xxh3_64_intdigest

from gateway.framework import Clock, Observer, TaskSet
from gateway.kvcache.events import AllBlocksCleared, BlockStored, Event, decode
from gateway.kvcache.index import CacheIndex
from gateway.kvcache.replay import ReplayBroken, replay, sequence_of
from gateway.kvcache.settings import CacheSettings
from gateway.kvcache.sockets import Ready, is_connected, open_monitor, open_socket

log = logging.getLogger("kvgate.kvcache")

SLICE = 256
"""Blocks applied between two turns of the loop: half a millisecond."""

MESSAGE_COST = 8
"""What a message costs beside its blocks, in blocks."""

QUEUE = 1_000
"""Messages that may wait in the subscriber: some 10 MB of a busy engine's, and more seconds than a replay takes. What
comes beyond waits in the engine, or is dropped there, and then asked for."""

TRIES = 3
"""Replays in a row that may bring nothing new before what came has to do, and the endpoint is partial."""

RETRY = 30.0
"""Seconds until a history that could not be read is asked for again."""


class Read(Enum):
    """How much of an engine's history could be read."""

    WHOLE = "whole"
    PARTLY = "partly"
    FAILED = "failed"


class EventStream:
    """Follows one endpoint's events into ``index``, from ``start`` to ``close``.

    ``address`` and ``replay``: of the engine's PUB and ROUTER sockets; without ``replay`` nothing from before the
    subscription is ever known. ``synced`` is set while the history has been read, as far as there is one. The state
    told to the observer: ``connecting``, ``live``, ``partial``, or ``off`` where an address cannot be one.
    ``heard_at``: Clock.monotonic() of the last live message; None: none came.
    """

    def __init__(
        self,
        slot: int,
        endpoint_name: str,
        address: str,
        replay: str | None,
        index: CacheIndex,
        observer: Observer,
        clock: Clock,
        settings: CacheSettings,
        topic: str = "",
    ) -> None:
        self.synced = asyncio.Event()
        self.heard_at: float | None = None
        self._slot = slot
        self._name = endpoint_name
        self._address = address
        self._replay = replay
        self._topic = topic
        self._index = index
        self._observer = observer
        self._clock = clock
        self._settings = settings
        self._tasks: TaskSet | None = None
        self._task: asyncio.Task[None] | None = None
        self._state = ""
        self._work = 0
        # Of the engine process that is followed: its last message that was applied (-1: none), that message's digest,
        # how many processes (or beginnings) there were before, the last message that came over the subscription, and
        # whether some of its history is not known.
        self._last = -1
        self._digest = 0
        self._process = 0
        self._heard = -1
        self._partial = False
        self._retry_at: float | None = None

    @property
    def state(self) -> str:
        return self._state

    def start(self, tasks: TaskSet) -> None:
        self._tasks = tasks
        self._last = self._heard = -1
        self._partial = False
        self._retry_at = None
        self._task = tasks.start(self._run(), name=f"KV events of {self._name}")

    def restart(self) -> None:
        """The engine is another process, or the index has to be told everything again: forget, and begin anew."""
        self._index.forget(self._slot)
        if self._task is not None and self._tasks is not None:
            self._task.cancel()
            self.synced.clear()
            self.start(self._tasks)

    async def close(self) -> None:
        """Ends the stream; safe before ``start`` and more than once. Nobody waits for its history any more."""
        self._tasks = None
        self.synced.set()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        self._tell("connecting")
        try:
            with open_socket(zmq.SUB) as subscriber, open_monitor(subscriber) as monitor:
                subscriber.rcvhwm = QUEUE
                subscriber.setsockopt(zmq.SUBSCRIBE, self._topic.encode())
                subscriber.connect(self._address)
                await self._follow(subscriber, monitor)
        except Exception as error:
            # What it holds is not known from here on: it is estimated, like one without events.
            trace = None if isinstance(error, zmq.ZMQError) else error
            log.error("KV events of %s cannot be followed at %s: %r", self._name, self._address, error, exc_info=trace)
            self._index.set_events(self._slot, False)
            self._tell("off")
            self.synced.set()

    async def _follow(self, subscriber: zmq.asyncio.Socket, monitor: zmq.asyncio.Socket) -> None:
        messages, changes = Ready(subscriber), Ready(monitor)
        try:
            while True:
                # A connection's changes come before what is heard on it.
                if change := changes.take():
                    if is_connected(change):
                        await self._connected()
                    else:
                        self._tell("connecting")
                elif frames := messages.take():
                    await self._hear(frames)
                elif self._patience() == 0:
                    await self._read_history(anew=True)
                    self._tell_synced()
                else:
                    some = (messages.some(), changes.some())
                    await asyncio.wait(some, timeout=self._patience(), return_when=asyncio.FIRST_COMPLETED)
        finally:
            messages.close()
            changes.close()

    def _patience(self) -> float | None:
        """Seconds until history is to be asked for again; None: it is known as far as it can be."""
        return None if self._retry_at is None else max(0.0, self._retry_at - self._clock.monotonic())

    async def _connected(self) -> None:
        """The subscription stands, for the first time or again: find out what was missed, and from whom."""
        self._heard = -1
        if self._replay is None:
            # What comes first tells: 0 is the beginning of a process that has said nothing yet.
            self._partial = True
        else:
            await self._read_history(anew=self._last < 0)
        self._tell_synced()

    async def _hear(self, frames: list[bytes]) -> None:
        """A live message."""
        sequence = sequence_of(frames)
        if sequence is None:
            self._observer.kv_events(self._name, "malformed-batch", 1)
            return
        payload = frames[-1]
        self.heard_at = self._clock.monotonic()
        heard, self._heard = self._heard, sequence
        if sequence == heard and xxh3_64_intdigest(payload) == self._digest:
            return
        if sequence <= heard or (self._replay is None and 0 <= sequence <= self._last):
            await self._forget()
            if self._replay is None:
                self._partial = sequence > 0
            elif await self._read_history(anew=True) is not Read.FAILED and sequence != self._last + 1:
                sequence = -1  # it was told, or its process is no more
            self._tell_synced()
        if sequence <= self._last:
            return  # the replay has told it already
        if sequence > self._last + 1:
            process = self._process
            if not await self._heal(sequence) or process != self._process:
                return
        elif self._last < 0 and self._replay is None:
            self._partial = False
            self._tell_synced()
        if sequence > self._last:
            await self._take(sequence, payload)

    async def _heal(self, sequence: int) -> bool:
        """Messages before ``sequence`` are missing: ask for them. False if nothing can be made of ``sequence`` now."""
        if self._replay is None:
            if self._last >= 0:  # else: of what came before us nothing was ever to be known
                self._observer.kv_gap(self._name, "lost")
                self._partial = True
                self._tell_synced()
            return True
        read = await self._read_history(anew=False)
        whole = read is Read.WHOLE and self._last >= sequence - 1
        self._observer.kv_gap(self._name, "replayed" if whole else "lost")
        if not whole:
            self._partial = True
        self._tell_synced()
        return whole or read is Read.FAILED or self._last >= sequence

    async def _read_history(self, anew: bool) -> Read:
        """Replay what is not known of the engine's history.

        ``anew``: all of it, and what is known goes as soon as there is something better. Else from our last message on:
        an engine that does not have just that is another process, and is read anew. Until the end of all that the past
        is not the present, and the endpoint is estimated.
        """
        assert self._replay is not None
        self._retry_at = None
        whole, fruitless = True, 0
        try:
            while fruitless < TRIES:
                anew = anew or self._last < 0
                before, start = self._last, 0 if anew else self._last
                ours = anew
                try:
                    async with aclosing(replay(self._replay, start, self._settings.replay_timeout)) as history:
                        async for sequence, payload in history:
                            if not ours and sequence == start:
                                if xxh3_64_intdigest(payload) != self._digest:
                                    break
                                ours = True
                                continue
                            ours = True
                            if anew or sequence > self._last + 1:
                                # Where a part is lost, removals may be in it: what the buffer still has is all we know.
                                await self._forget()
                                self._index.reading(self._slot, True)
                                self._partial = sequence > 0
                                whole = not self._partial
                                anew, before = False, -1
                            await self._take(sequence, payload)
                    if not ours:
                        anew = True
                        continue
                    if anew:  # a process that has said nothing yet
                        await self._forget()
                        self._partial = False
                    return Read.WHOLE if whole else Read.PARTLY
                except ReplayBroken as error:
                    log.info("%s: its history, from %s: %s", self._name, self._replay, error)
                    fruitless = fruitless + 1 if self._last == before else 0
        finally:
            if asyncio.current_task() is self._task:
                self._index.reading(self._slot, False)
        log.warning("%s: its engine's event history cannot be read at %s", self._name, self._replay)
        self._partial = True
        self._retry_at = self._clock.monotonic() + RETRY
        return Read.FAILED

    async def _forget(self) -> None:
        self._index.forget(self._slot)
        self._last = -1
        self._process += 1
        while not self._index.sweep(SLICE):  # noqa: ASYNC110 -- nothing is waited for: others run between two slices
            await asyncio.sleep(0)

    async def _take(self, sequence: int, payload: bytes) -> None:
        """Apply one message, in slices."""
        self._last, self._digest = sequence, xxh3_64_intdigest(payload)
        batch = decode(payload)
        self._work += MESSAGE_COST
        for reason, count in batch.refused.items():
            self._observer.kv_events(self._name, reason, count)
        some: list[Event] = []
        for event in batch.events:
            for piece in _pieces(event):
                if isinstance(piece, AllBlocksCleared):
                    await self._apply(some)
                    for _ in self._index.reset(self._slot):
                        self._work += 1
                        await self._rest()
                    continue
                some.append(piece)
                self._work += len(piece.block_hashes)
                if self._work >= SLICE:
                    await self._apply(some)
        await self._apply(some)
        self._index.tell(self._slot)

    async def _apply(self, some: list[Event]) -> None:
        """Apply events, and let others run if it is time."""
        self._index.take(self._slot, some)
        some.clear()
        if asyncio.current_task() is not self._task:
            # The index changed its unit and had us restarted: the rest is for our successor, in its order.
            raise asyncio.CancelledError
        await self._rest()

    async def _rest(self) -> None:
        if self._work >= SLICE:
            self._work = 0
            await asyncio.sleep(0)

    def _tell_synced(self) -> None:
        if not self._partial:
            self._index.believe(self._slot)
        self._tell("partial" if self._partial else "live")
        self.synced.set()

    def _tell(self, state: str) -> None:
        if state != self._state:
            self._state = state
            self._observer.kv_stream(self._name, state)


def _pieces(event: Event) -> Iterator[Event]:
    """``event`` in parts of a slice each."""
    if not isinstance(event, BlockStored) or len(event.block_hashes) <= SLICE:
        yield event
        return
    hashes, tokens, size, extra = event.block_hashes, event.token_ids, event.block_size, event.extra_keys
    if len(tokens) != len(hashes) * size:
        yield event  # it will be refused as a whole
        return
    for start in range(0, len(hashes), SLICE):
        yield replace(
            event,
            block_hashes=hashes[start : start + SLICE],
            parent_block_hash=hashes[start - 1] if start else event.parent_block_hash,
            token_ids=tokens[start * size : (start + SLICE) * size],
            extra_keys=extra[start : start + SLICE] if extra is not None else None,
        )
