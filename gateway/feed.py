"""Connects the fleet to the cache indexes: neither room may import from the other."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence

import zmq

from gateway.core.observer import Observer
from gateway.core.tasks import TaskSet
from gateway.errors import ConfigError
from gateway.fleet.fleet import Fleet, KvSource
from gateway.framework import Clock, Endpoint
from gateway.kvcache.events.listener import EventListener, ListenerSource
from gateway.kvcache.events.poller import Poller
from gateway.kvcache.events.sockets import EventSource
from gateway.kvcache.events.stream import EventStream
from gateway.kvcache.events.subscription import Subscription
from gateway.kvcache.events.target import EventTarget
from gateway.kvcache.index.cache_index import CacheIndex

SWEEP_SLICE = 500
"""Steps of clearing a removed endpoint's columns at a time: below a millisecond."""


class CacheFeed:
    """Owns the event streams: adds and removes endpoints in the indexes, and starts and restarts their streams.

    ``poller``: of the streams' sockets. ``listener``: for engines that connect to us.
    """

    def __init__(
        self,
        indexes: dict[str, CacheIndex],
        clock: Clock,
        observer: Observer,
        poller: Poller,
        listener: EventListener | None = None,
    ) -> None:
        self._indexes = indexes
        self._listener = listener
        self._clock = clock
        self._observer = observer
        self._poller = poller
        self._streams: dict[Endpoint, EventStream] = {}
        self._tasks = TaskSet()
        self._fleet: Fleet | None = None

    def connect(self, fleet: Fleet) -> None:
        self._fleet = fleet
        fleet.listen(self)

    def add(self, model: str, index: CacheIndex) -> None:
        """Before the first endpoint of ``model`` is added."""
        self._indexes[model] = index

    def remove(self, model: str) -> None:
        """After the last endpoint of ``model`` was dropped."""
        del self._indexes[model]

    async def release(self) -> None:
        """Let engines that connect to us connect to another process that listens there."""
        if self._listener is not None:
            await self._listener.release()

    def listen(self, *, beside: bool = False) -> None:
        """Let engines connect to us, if there is a ``listener``. ``beside``: another process listens there, which will
        ``release`` them. Raises ConfigError."""
        if self._listener is not None:
            try:
                self._listener.start(self._poller, beside=beside)
            except zmq.ZMQError as error:
                why = zmq.strerror(error.errno or 0)
                raise ConfigError(f"cannot listen on {self._listener.address}: {why}") from error

    def expect(self, topics: Sequence[str]) -> None:
        """The topics of the engines that are to connect to us, from now on."""
        if self._listener is not None:
            self._listener.set_topics(topics)

    def endpoint_added(self, endpoint: Endpoint) -> None:
        self._index(endpoint).add(endpoint, events=False)

    def endpoint_dropped(self, endpoint: Endpoint) -> None:
        self._stop_stream(endpoint)
        index = self._index(endpoint)
        index.remove(endpoint.slot)
        self._tasks.start(self._sweep(index, endpoint.slot), name=f"sweep {endpoint.name}")

    def engine_restarted(self, endpoint: Endpoint) -> None:
        stream = self._streams.get(endpoint)
        if stream is not None:
            stream.restart()
        else:
            self._index(endpoint).clear(endpoint.slot)

    def engine_asleep(self, endpoint: Endpoint) -> None:
        """vLLM announces the reset with its first step after waking up, when requests have been placed already."""
        if (stream := self._streams.get(endpoint)) is not None:
            self._poller.expect()
            stream.fell_asleep()
        else:
            self._index(endpoint).clear(endpoint.slot)

    def kv_source(self, endpoint: Endpoint, source: KvSource | None) -> None:
        self._stop_stream(endpoint)
        index = self._index(endpoint)
        index.set_events(endpoint.slot, source is not None)
        if source is None:
            self._observer.kv_stream(endpoint.name, "off")
            return
        where: EventSource
        if source.address is not None:
            where = Subscription(source.address, source.topic, self._poller)
        else:
            assert self._listener is not None, "the configuration is checked for it"
            where = ListenerSource(self._listener, source.topic, source.offset)
        target = EventTarget(
            slot=endpoint.slot,
            name=endpoint.name,
            replay=source.replay,
            rank=source.rank,
            index=index,
            observer=self._observer,
            clock=self._clock,
            rekeyed=functools.partial(self._restart_all, endpoint.model.name),
        )
        stream = self._streams[endpoint] = EventStream(target, where)
        stream.start(self._tasks)

    async def synced(self, timeout: float) -> bool:
        """Wait until every stream has replayed its history; false if one had not after ``timeout`` seconds."""
        try:
            async with asyncio.timeout(timeout):
                while missing := [stream for stream in self._streams.values() if not stream.synced.is_set()]:
                    await missing[0].synced.wait()
        except TimeoutError:
            return False
        return True

    def following(self, endpoint: Endpoint) -> tuple[str, float | None]:
        """The state of the endpoint's event stream, and seconds since its last message; ``off`` where there is none."""
        stream = self._streams.get(endpoint)
        if stream is None:
            return "off", None
        return stream.state, None if stream.heard_at is None else self._clock.monotonic() - stream.heard_at

    async def close(self) -> None:
        for stream in self._streams.values():
            await stream.close()
        await self._tasks.close()
        if self._listener is not None:
            await self._listener.close()

    def _index(self, endpoint: Endpoint) -> CacheIndex:
        return self._indexes[endpoint.model.name]

    def _restart_all(self, model: str) -> None:
        """The index of ``model`` was rekeyed: another block unit, and empty."""
        for endpoint, stream in self._streams.items():
            if endpoint.model.name == model:
                stream.restart()

    def _stop_stream(self, endpoint: Endpoint) -> None:
        if (stream := self._streams.pop(endpoint, None)) is not None:
            self._tasks.start(stream.close(), name=f"close the events of {endpoint.name}")

    async def _sweep(self, index: CacheIndex, slot: int) -> None:
        """A slot is used again only once the block table has nothing left of it."""
        while not index.sweep(SWEEP_SLICE):  # noqa: ASYNC110 -- nothing is waited for: streams run between two slices
            await asyncio.sleep(0)
        assert self._fleet is not None
        self._fleet.release_slot(slot)
