"""A clock that stands still, an observer that counts, captures, and an engine's event sockets that can misbehave."""

from __future__ import annotations

import asyncio
import struct
from array import array
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from itertools import chain, repeat
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
import zmq
import zmq.asyncio

from gateway.core.clock import ManualClock
from gateway.core.observer import Observer
from gateway.core.prompt import Prompt
from gateway.core.tasks import TaskSet
from gateway.fleet.load.ledger import Ledger
from gateway.framework import Endpoint, Engine
from gateway.framework.cost import CostModel
from gateway.framework.fleet import EngineMetrics, Model
from gateway.framework.match import Match
from gateway.kvcache.events.poller import Poller
from gateway.kvcache.events.sockets import EventSource
from gateway.kvcache.events.stream import EventStream
from gateway.kvcache.events.subscription import Subscription
from gateway.kvcache.events.target import REPLAY_TIMEOUT, EventTarget
from gateway.kvcache.index.block_events import AllBlocksCleared, BlockRemoved, BlockStored, Event
from gateway.kvcache.index.block_table import BlockTable
from gateway.kvcache.index.cache_index import Applied, CacheIndex
from gateway.kvcache.index.keys import chain as chained
from gateway.kvcache.settings import CacheSettings
from simulator.publisher import END as END
from tests.support.wait import eventually

DATA = Path(__file__).parent.parent / "data" / "kvcache"

LINGER_MS = 1_000
"""For which a closed socket goes on sending. libzmq aborts the process (its issue 3442) if a sender is closed without
any time to linger in the middle of a message, and its reader leaves before libzmq has put the socket away: only while
it lingers can the rest of the message be thrown away. It ends as soon as the reader has left."""

BURST = 200
"""Messages of an endless answer between two turns of others: three times what a replay takes in one, so that it never
waits for more. While its send has room it waits for nobody, and a connection has room for 200,000 small messages."""


class Tally(Observer):
    """Counts what it is told. ``states``: of each endpoint's stream, in order."""

    def __init__(self) -> None:
        self.events: Counter[str] = Counter()
        self.gaps: Counter[str] = Counter()
        self.states: list[str] = []
        self.blocks = 0

    def kv_events(self, endpoint: str, kind: str, count: int) -> None:
        self.events[kind] += count

    def kv_gap(self, endpoint: str, result: str) -> None:
        self.gaps[result] += 1

    def kv_stream(self, endpoint: str, state: str) -> None:
        self.states.append(state)

    def kv_blocks(self, model: str, blocks: int) -> None:
        self.blocks = blocks


def endpoint(slot: int = 0, *, capacity: int = 0, block_size: int = 0) -> Endpoint:
    return Endpoint(
        slot=slot,
        name=f"e{slot}",
        model=Model("m"),
        engine=Engine(f"http://e{slot}", f"e{slot}"),
        load=Ledger(ManualClock()),
        cost=cast(CostModel, None),
        metrics=EngineMetrics(kv_capacity=capacity, block_size=block_size),
    )


def captured(name: str) -> list[list[bytes]]:
    """The messages of a capture, each as its frames."""
    data, at, messages = (DATA / name).read_bytes(), 0, []
    while at < len(data):
        (count,) = struct.unpack_from(">I", data, at)
        at += 4
        frames = []
        for _ in range(count):
            (length,) = struct.unpack_from(">I", data, at)
            frames.append(data[at + 4 : at + 4 + length])
            at += 4 + length
        messages.append(frames)
    return messages


def ids(*numbers: int, size: int = 16) -> array[int]:
    """Token ids of one block for each number."""
    return array("I", chain.from_iterable(map(repeat, numbers, repeat(size))))


def keys_of(*numbers: int) -> list[int]:
    """The keys of a prompt of these blocks, with the root 1."""
    return chained(ids(*numbers), 16, 1)


def stored(hashes: Sequence[int], tokens: Sequence[int], parent: int | None = None, **others: Any) -> BlockStored:
    size = len(tokens) // len(hashes) if hashes else 16
    return BlockStored(
        block_hashes=list(hashes),
        parent_block_hash=parent,
        token_ids=list(tokens),
        **{"block_size": size, "medium": "GPU", "group_idx": 0, "kv_cache_spec_kind": "full_attention", **others},
    )


def removed(*hashes: int, **others: Any) -> BlockRemoved:
    return BlockRemoved(block_hashes=list(hashes), **{"medium": "GPU", "group_idx": 0, **others})


def payload(*events: Event) -> bytes:
    """A message as vLLM 0.32 encodes it."""
    return msgspec.msgpack.encode([1.0, [msgspec.to_builtins(event) for event in events], 0])


def tokens_held(index: CacheIndex, slot: int, prompt: array[int], **seed: Any) -> int:
    keys = index.keys(Prompt(prompt, len(prompt), True), seed.get("adapter"), seed.get("salt"))
    return index.match(keys, len(prompt) + 1, [endpoint(slot)])[slot].tokens


def held_at(table: BlockTable, column: int) -> set[int]:
    """Keys that ``column`` holds."""
    return {
        key
        for chunk in table.heads.values()
        for number, key in enumerate(chunk.keys)
        if chunk.held(column) >> number & 1
    }


class Index:
    """An index that can be told a single event, and whose methods a test may replace. It has a CacheIndex and is none:
    where that is compiled, it has no subclasses that are not, and its methods stay."""

    def __init__(self, *given: Any) -> None:
        self._index = CacheIndex(*given)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._index, name)

    def apply_one(self, slot: int, event: Event) -> bool:
        """Return whether the index has another unit since."""
        return self.apply(slot, (event,)) is Applied.REKEYED


def index_of(
    slots: int = 1, events: bool = True, clock: ManualClock | None = None, tally: Tally | None = None, **limits: Any
) -> Index:
    index = Index(CacheSettings(**limits), "m", clock or ManualClock(), tally or Tally())
    for slot in range(slots):
        index.add(endpoint(slot), events)
    return index


def look(
    index: CacheIndex,
    prompt: array[int],
    slot: int = 0,
    count: int | None = None,
    exact: bool = True,
    adapter: str | None = None,
    salt: str | None = None,
) -> Match:
    keys = index.keys(Prompt(prompt, count or len(prompt), exact), adapter, salt)
    return index.match(keys, count or len(prompt), [endpoint(slot)])[slot]


class ScriptedPublisher:
    """The PUB and ROUTER sockets of one engine, and what can be wrong with them.

    ``lose``: so many messages more are kept, but not sent. ``holes``: sequences that each replay leaves out, once.
    ``without_end``: so many replays more end without the marker. ``endless``: replays go on with this message until
    whoever asked is gone. ``deaf``: replays are not answered. ``asked``: the sequences that replays were asked from.
    ``said``: messages of the last endless one. ``binds``: else its PUB socket connects to ``address``.
    """

    def __init__(self) -> None:
        self.lose = 0
        self.holes: set[int] = set()
        self.without_end = 0
        self.endless: bytes | None = None
        self.said = 0
        self.deaf = False
        self.asked: list[int] = []
        self.kept: dict[int, bytes] = {}
        self.next = 0
        self.topic = b"kv"
        self.binds = True
        self.address = self.replay = "tcp://127.0.0.1:*"
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen: on the same ports as before, if it was started before."""
        context = zmq.asyncio.Context.instance()
        self._pub, self._router = context.socket(zmq.XPUB), context.socket(zmq.ROUTER)
        self._pub.setsockopt(zmq.XPUB_VERBOSE, 1)
        bound = [(self._router, "replay")]
        if self.binds:
            bound.append((self._pub, "address"))
        for socket, name in bound:
            address = getattr(self, name)
            for _ in range(1000):  # the port of a closed socket is free a moment later
                try:
                    socket.bind(address)
                    break
                except zmq.ZMQError as error:
                    if error.errno != zmq.EADDRINUSE:
                        raise
                    await asyncio.sleep(0.005)
            setattr(self, name, socket.getsockopt_string(zmq.LAST_ENDPOINT))
        if not self.binds:
            self._pub.connect(self.address)
        self._task = asyncio.get_running_loop().create_task(self._serve())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None
            self._pub.close(linger=0)  # at once: whoever hears it knows by that of a restart
            self._router.close(linger=LINGER_MS)

    async def restart(self) -> None:
        """Another process at the same addresses, which has said nothing yet."""
        await self.stop()
        self.kept.clear()
        self.next = 0
        await self.start()

    async def subscribed(self) -> None:
        """Wait for a subscription: what is published from now on is heard."""
        async with asyncio.timeout(30):
            await self._pub.recv()

    async def publish(self, *events: Event) -> None:
        await self.send(payload(*events))

    def send_later(self, *events: Event) -> None:
        """Keep a message for replays that nobody could hear."""
        self.kept[self.next] = payload(*events)
        self.next += 1

    async def send(self, message: bytes) -> None:
        sequence, self.next = self.next, self.next + 1
        self.kept[sequence] = message
        if self.lose:
            self.lose -= 1
        else:
            await self.send_frames(self.topic, sequence.to_bytes(8, "big"), message)

    async def send_frames(self, *frames: bytes) -> None:
        await self._pub.send_multipart(list(frames))

    async def _serve(self) -> None:
        while True:
            client, empty, start = await self._router.recv_multipart()
            self.asked.append(int.from_bytes(start, "big"))
            if self.deaf:
                continue
            if self.endless is not None:
                await self._go_on(client, empty, self.endless)
                continue
            for sequence, message in list(self.kept.items()):
                if sequence in self.holes:
                    self.holes.discard(sequence)
                elif sequence >= self.asked[-1]:
                    frames = [client, empty, self.topic, sequence.to_bytes(8, "big"), message]
                    await self._router.send_multipart(frames)
            if self.without_end:
                self.without_end -= 1
            else:
                await self._router.send_multipart([client, empty, b"", END, b""])

    async def _go_on(self, client: bytes, empty: bytes, message: bytes) -> None:
        self._router.router_mandatory = 1  # waits for room, and drops nothing
        self.said = 0
        try:
            while True:
                sequence = (self.asked[-1] + self.said).to_bytes(8, "big")
                await self._router.send_multipart([client, empty, self.topic, sequence, message])
                self.said += 1
                if self.said % BURST == 0:
                    await asyncio.sleep(0)
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise


TICK = 0.004
"""Seconds between two looks at messages in tests: several are taken together, and nobody waits."""


class Follower:
    """A gateway's side: an index and a stream for each engine, its slot being its number."""

    def __init__(self, replay_timeout: float = REPLAY_TIMEOUT, reannounce: int = 0) -> None:
        self.poller = Poller(TICK)
        self.settings = CacheSettings(reannounce=reannounce)
        self.replay_timeout = replay_timeout
        self.clock = ManualClock()
        self.tally = Tally()
        self.index = Index(self.settings, "m", self.clock, self.tally)
        self.tasks = TaskSet()
        self.streams: list[EventStream] = []

    def follow(self, address: str, replay: str | None, topic: str = "", rank: int | None = None) -> EventStream:
        return self.follow_from(Subscription(address, topic, self.poller), replay, rank)

    def follow_from(self, source: EventSource, replay: str | None, rank: int | None = None) -> EventStream:
        slot = len(self.streams)
        self.index.add(endpoint(slot), events=True)
        target = EventTarget(
            slot=slot,
            name=f"e{slot}",
            replay=replay,
            rank=rank,
            index=self.index,
            observer=self.tally,
            clock=self.clock,
            timeout=self.replay_timeout,
            rekeyed=self.restart,
        )
        stream = EventStream(target, source)
        self.streams.append(stream)
        stream.start(self.tasks)
        return stream

    def restart(self) -> None:
        for stream in self.streams:
            stream.restart()

    async def close(self) -> None:
        for stream in self.streams:
            await stream.close()
        await self.tasks.close()


async def live(follower: Follower, engine: ScriptedPublisher, **others: Any) -> None:
    """Follow ``engine`` until its history is read and live messages are heard."""
    stream = follower.follow(engine.address, engine.replay, **others)
    async with asyncio.timeout(30):
        await engine.subscribed()
        await stream.synced.wait()


async def held(follower: Follower, slot: int, *numbers: int, tokens: int | None = None) -> None:
    """Wait until the whole prompt of ``numbers`` is held, or ``tokens`` of it."""
    prompt, wanted = ids(*numbers), 16 * len(numbers) if tokens is None else tokens
    await eventually(lambda: tokens_held(follower.index, slot, prompt) == wanted, f"{numbers}: {wanted} tokens")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def tally() -> Tally:
    return Tally()


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedPublisher]:
    fake = ScriptedPublisher()
    await fake.start()
    yield fake
    await fake.stop()


@pytest.fixture
async def follower() -> AsyncIterator[Follower]:
    one = Follower()
    yield one
    await one.close()


CLEARED = AllBlocksCleared()
