"""One endpoint's KV events, from its engine to the index, healed where they break.

Rules: subscribe first, replay second, then live: so nothing falls between. The sequence counts from 0 in each engine
process. A gap is asked for again; a sequence that goes back is another process: forget, and begin anew. History that
has left the engine's buffer makes the endpoint *partial*: what is known is right, but not all. Work on the loop is
done in slices, since a busy thread stalls every stream that the gateway relays.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator

import zmq
import zmq.asyncio

from gateway.framework import Clock, Observer, TaskSet
from gateway.kvcache.events import BlockStored, Event, decode
from gateway.kvcache.index import CacheIndex
from gateway.kvcache.settings import CacheSettings

log = logging.getLogger("kvgate.kvcache")

SLICE = 0.001
"""Seconds of work between two turns of the loop."""

BLOCK_SLICE = 256
"""Blocks of one event that are applied at a time: about half a millisecond."""

END = b"\xff" * 8
"""The sequence of a replay's last message."""

TRIES = 3
"""Replays in a row that may bring nothing new before what came has to do, and the endpoint is partial."""


class EventStream:
    """Follows one endpoint's events into ``index``, from ``start`` to ``close``.

    ``address`` and ``replay``: of the engine's PUB and ROUTER sockets; without ``replay`` nothing from before the
    subscription is ever known. ``synced`` is set once the history was read, as far as there is one.
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
        self._slot = slot
        self._name = endpoint_name
        self._address = address
        self._replay_address = replay
        self._topic = topic
        self._index = index
        self._observer = observer
        self._clock = clock
        self._settings = settings
        self._last = -1
        self._partial = False
        self._tasks: TaskSet | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self, tasks: TaskSet) -> None:
        self._tasks = tasks
        self._task = tasks.start(self._run(), name=f"KV events of {self._name}")

    def restart(self) -> None:
        """The engine is another process, or the index has to be told everything again: forget, and begin anew."""
        self._index.forget(self._slot)
        self.synced.clear()
        if self._task is not None and self._tasks is not None:
            self._task.cancel()
            self._task = self._tasks.start(self._run(), name=f"KV events of {self._name}")

    async def close(self) -> None:
        """Ends the stream; safe before ``start`` and more than once. Nobody waits for its history any more."""
        self.synced.set()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        self._observer.kv_stream(self._name, "connecting")
        try:
            with _socket(zmq.SUB) as subscriber:
                subscriber.setsockopt(zmq.SUBSCRIBE, self._topic.encode())
                subscriber.connect(self._address)
                while True:
                    await self._follow(subscriber)
        except zmq.ZMQError as error:
            log.error("KV events of %s cannot be followed at %s: %s", self._name, self._address, error)
            self._observer.kv_stream(self._name, "off")
            self.synced.set()

    async def _follow(self, subscriber: zmq.asyncio.Socket) -> None:
        """One engine process: its history, then what it says; returns when the sequence goes back."""
        self._last = -1
        self._partial = self._replay_address is None
        await self._catch_up()
        self._tell()
        self.synced.set()
        heard = -1  # on this socket: what the replay has told already comes here again, but never twice
        while True:
            frames = await subscriber.recv_multipart()
            sequence = int.from_bytes(frames[-2], "big") if len(frames) >= 2 else None
            if sequence is None or len(frames[-2]) != 8:
                self._observer.kv_events(self._name, "malformed-batch", 1)
                continue
            if sequence <= heard:
                self._index.forget(self._slot)
                if self._replay_address is None:
                    self._last = sequence - 1
                    heard = sequence
                    await self._take(sequence, frames[-1])
                    continue
                return
            heard = sequence
            if sequence > self._last + 1 and not (self._last == -1 and self._replay_address is None):
                await self._heal(sequence)
            if sequence > self._last:
                await self._take(sequence, frames[-1])

    async def _heal(self, sequence: int) -> None:
        """Messages before ``sequence`` are missing: ask for them."""
        await self._catch_up()
        whole = self._last >= sequence - 1
        self._observer.kv_gap(self._name, "replayed" if whole else "lost")
        if not whole and not self._partial:
            self._partial = True
            self._tell()

    async def _catch_up(self) -> None:
        """Replay from behind the last message until the end marker came and nothing is missing."""
        if self._replay_address is None:
            return
        fruitless = 0
        while fruitless < TRIES:
            before = self._last
            with contextlib.suppress(TimeoutError):
                if await self._replay(self._replay_address):
                    return
            fruitless = fruitless + 1 if self._last == before else 0
        log.warning("%s: its engine's event history could not be read at %s", self._name, self._replay_address)
        self._partial = True

    async def _replay(self, address: str) -> bool:
        """Ask once; true if it came to its end without a hole. A ROUTER drops silently what a slow reader leaves.

        Raises TimeoutError when nothing comes.
        """
        with _socket(zmq.DEALER) as dealer:
            dealer.connect(address)
            wanted = self._last + 1
            await dealer.send_multipart([b"", wanted.to_bytes(8, "big")])
            first = True
            while True:
                async with asyncio.timeout(self._settings.replay_timeout):
                    frames = await dealer.recv_multipart()
                if len(frames) < 2 or frames[-2] == END:
                    return True
                sequence = int.from_bytes(frames[-2], "big")
                if sequence <= self._last:
                    continue
                if sequence > self._last + 1:
                    if not first:
                        return False
                    # The oldest that the engine still has: what came before is lost.
                    self._partial = True
                first = False
                await self._take(sequence, frames[-1])

    async def _take(self, sequence: int, payload: bytes) -> None:
        """Apply one message, in slices."""
        self._last = sequence
        batch = decode(payload)
        for reason, count in batch.refused.items():
            self._observer.kv_events(self._name, reason, count)
        began = self._clock.monotonic()
        for event in batch.events:
            for piece in _pieces(event):
                self._index.apply(self._slot, piece)
                if self._clock.monotonic() - began > SLICE:
                    await asyncio.sleep(0)
                    began = self._clock.monotonic()

    def _tell(self) -> None:
        self._observer.kv_stream(self._name, "partial" if self._partial else "live")


@contextlib.contextmanager
def _socket(kind: int) -> Iterator[zmq.asyncio.Socket]:
    """A socket of the process's one context (and its one I/O thread), closed at the end."""
    socket = zmq.asyncio.Context.instance().socket(kind)
    # No limit: a message dropped here would be a gap. What may pile up is bounded by the engine's own limits.
    socket.set_hwm(0)
    socket.linger = 0
    try:
        yield socket
    finally:
        socket.close()


def _pieces(event: Event) -> Iterator[Event]:
    """``event`` in parts that take half a millisecond at most."""
    if not isinstance(event, BlockStored) or len(event.block_hashes) <= BLOCK_SLICE or not event.token_ids:
        yield event
        return
    hashes, tokens, size, extra = event.block_hashes, event.token_ids, event.block_size, event.extra_keys
    if len(tokens) != len(hashes) * size:
        yield event  # it will be refused as a whole
        return
    for start in range(0, len(hashes), BLOCK_SLICE):
        yield BlockStored(
            block_hashes=hashes[start : start + BLOCK_SLICE],
            parent_block_hash=hashes[start - 1] if start else event.parent_block_hash,
            token_ids=tokens[start * size : (start + BLOCK_SLICE) * size],
            block_size=size,
            medium=event.medium,
            lora_name=event.lora_name,
            extra_keys=extra[start : start + BLOCK_SLICE] if extra is not None else None,
            group_idx=event.group_idx,
            kv_cache_spec_kind=event.kv_cache_spec_kind,
        )
