"""Connects the fleet to the cache indexes: the one thing that both know, and neither room may import from the other."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence

import zmq

from gateway.errors import ConfigError
from gateway.fleet.fleet import Fleet, KvSource
from gateway.framework import Clock, Endpoint, Observer, TaskSet
from gateway.kvcache.index import CacheIndex
from gateway.kvcache.intake import Expected, Intake
from gateway.kvcache.pace import Pace
from gateway.kvcache.settings import CacheSettings
from gateway.kvcache.sockets import EventSource
from gateway.kvcache.stream import EventStream
from gateway.kvcache.subscription import Subscription

SWEEP_SLICE = 500
"""Steps of clearing an endpoint's places at a time: below a millisecond."""


class CacheFeed:
    """Connects the fleet to the indexes: an endpoint that comes or goes, where its KV events are, that it restarted.

    ``pace``: when it is looked at what engines have said. ``intake``: for engines that connect to us.
    """

    def __init__(
        self,
        caches: dict[str, tuple[CacheIndex, CacheSettings]],
        clock: Clock,
        observer: Observer,
        pace: Pace,
        intake: Intake | None = None,
    ) -> None:
        self._caches = caches
        self._intake = intake
        self._clock = clock
        self._observer = observer
        self._pace = pace
        self._streams: dict[Endpoint, EventStream] = {}
        self._tasks = TaskSet()
        self._fleet: Fleet | None = None
        for model, (index, _) in caches.items():
            self._wire(model, index)

    def connect(self, fleet: Fleet) -> None:
        self._fleet = fleet
        fleet.listen(self)

    def add(self, model: str, index: CacheIndex, settings: CacheSettings) -> None:
        """Before the first endpoint of ``model`` is added."""
        self._caches[model] = index, settings
        self._wire(model, index)

    def forget(self, model: str) -> None:
        """After the last endpoint of ``model`` was dropped."""
        del self._caches[model]

    def listen(self) -> None:
        """Let engines connect to us, if there is an ``intake``. Raises ConfigError."""
        if self._intake is not None:
            try:
                self._intake.start(self._pace)
            except zmq.ZMQError as error:
                why = zmq.strerror(error.errno or 0)
                raise ConfigError(f"cannot listen on {self._intake.address}: {why}") from error

    def expect(self, topics: Sequence[str]) -> None:
        """The topics of the engines that are to connect to us, from now on."""
        if self._intake is not None:
            self._intake.expect(topics)

    def endpoint_added(self, endpoint: Endpoint) -> None:
        self._index(endpoint).add(endpoint, events=False)

    def endpoint_dropped(self, endpoint: Endpoint) -> None:
        self._stop_stream(endpoint)
        index = self._index(endpoint)
        index.drop(endpoint.slot)
        self._tasks.start(self._sweep(index, endpoint.slot), name=f"sweep {endpoint.name}")

    def engine_restarted(self, endpoint: Endpoint) -> None:
        stream = self._streams.get(endpoint)
        if stream is not None:
            stream.restart()
        else:
            self._index(endpoint).forget(endpoint.slot)

    def engine_asleep(self, endpoint: Endpoint) -> None:
        """vLLM announces the reset with its first step after waking up, when requests have been placed already."""
        if (stream := self._streams.get(endpoint)) is not None:
            stream.fell_asleep()
        else:
            self._index(endpoint).forget(endpoint.slot)

    def kv_source(self, endpoint: Endpoint, source: KvSource | None) -> None:
        self._stop_stream(endpoint)
        index, settings = self._caches[endpoint.model.name]
        index.set_events(endpoint.slot, source is not None)
        if source is None:
            self._observer.kv_stream(endpoint.name, "off")
            return
        where: EventSource
        if source.address is not None:
            where = Subscription(source.address, source.topic, self._pace)
        else:
            assert self._intake is not None, "the configuration is checked for it"
            where = Expected(self._intake, source.topic, source.offset)
        stream = EventStream(
            slot=endpoint.slot,
            endpoint_name=endpoint.name,
            source=where,
            replay=source.replay,
            rank=source.rank,
            index=index,
            observer=self._observer,
            clock=self._clock,
            settings=settings,
        )
        self._streams[endpoint] = stream
        stream.start(self._tasks)

    async def synced(self, timeout: float) -> bool:
        """Wait until every stream has replayed what there is; false if some had not after ``timeout`` seconds."""
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
        if self._intake is not None:
            await self._intake.close()

    def _wire(self, model: str, index: CacheIndex) -> None:
        index.on_new_unit = functools.partial(self._replay_all, model)

    def _index(self, endpoint: Endpoint) -> CacheIndex:
        return self._caches[endpoint.model.name][0]

    def _replay_all(self, model: str) -> None:
        """The index of ``model`` has begun anew with another block unit."""
        for endpoint, stream in self._streams.items():
            if endpoint.model.name == model:
                stream.restart()

    def _stop_stream(self, endpoint: Endpoint) -> None:
        if (stream := self._streams.pop(endpoint, None)) is not None:
            self._tasks.start(stream.close(), name=f"close the events of {endpoint.name}")

    async def _sweep(self, index: CacheIndex, slot: int) -> None:
        """A slot is used again only when no key bears its bit any more."""
        while not index.sweep(SWEEP_SLICE):  # noqa: ASYNC110 -- nothing is waited for: streams run between two slices
            await asyncio.sleep(0)
        assert self._fleet is not None
        self._fleet.release_slot(slot)
