"""The engines of all ranks behind one door: chooses the rank, makes the answer's tokens, counts what was refused.

Knows prompts and tokens, and nothing of HTTP.
"""

from __future__ import annotations

import itertools
import random
import uuid
import zlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from simulator.blocks import HashChain
from simulator.driver import Driver, Stream
from simulator.engine import Engine
from simulator.errors import ApiError, bad_value, busy
from simulator.generation import Generation
from simulator.job import Job
from simulator.prompts import Ask, Prompts
from simulator.publisher import EventSockets
from simulator.settings import EngineSettings
from simulator.tokenizer import Words, load_words
from simulator.transfer.connector import Connector
from simulator.transfer.protocols import connect


class Service:
    """Start it on a running loop."""

    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings
        self.words: Words = load_words(settings.tokenizer)
        self.prompts = Prompts(settings, self.words)
        self.sockets = EventSockets(settings)
        self.engine_id = str(uuid.uuid4())
        self.engines: list[Engine] = []
        self.connectors: list[Connector] = []
        self._drivers: list[Driver] = []
        for _ in range(settings.ranks):
            self._add_rank()
        build = zlib.crc32(repr(settings).encode())
        self.fingerprint = f"vllm-{settings.version}-{build:08x}"
        self.rejected = 0
        self.aborted = 0
        self._turn = 0
        self._host = ""
        self._died: Callable[[str], None] = lambda reason: None

    async def start(self, host: str, died: Callable[[str], None] = lambda reason: None) -> None:
        """Raises zmq.ZMQError or OSError if a port is taken. ``died`` is called when a request kills the engine."""
        self._host, self._died = host, died
        self.sockets.start(host)
        try:
            for rank in range(len(self.engines)):
                await self._start_rank(rank)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        for driver in self._drivers:
            await driver.close()
        for connector in self.connectors:
            await connector.close()
        await self.sockets.close()

    async def resize(self, ranks: int) -> None:
        """Have so many ranks from now on: the last ones go, or new ones come on the ports behind the others'.

        Raises ApiError 409 for ranks that are busy, zmq.ZMQError where a port is taken.
        """
        if any(engine.running or engine.queued for engine in self.engines[ranks:]):
            raise ApiError(409, "The ranks that shall go are busy.", "Conflict")
        while len(self.engines) > ranks:
            await self._drivers.pop().close()
            await self.connectors.pop().close()
            self.engines.pop()
        await self.sockets.resize(ranks)
        while len(self.engines) < ranks:
            self._add_rank()
            await self._start_rank(len(self.engines) - 1)

    def connector(self, rank: int | None) -> Connector:
        """The rank's, or, where none is chosen or there is no such rank, the first one's."""
        return self.connectors[rank if rank is not None and 0 <= rank < len(self.connectors) else 0]

    @property
    def running(self) -> int:
        return sum(len(engine.running) for engine in self.engines)

    @property
    def waiting(self) -> int:
        return sum(engine.queued for engine in self.engines)

    def generate(self, asks: Sequence[Ask], request_id: str, rank: int | None, now: float) -> Generation:
        """Queue the sequences of one request, all on one rank. ``now``: the loop's time.

        Raises ApiError: 400 for a rank that there is none of, 503 where the queue is full.
        """
        count = len(self._drivers)
        if rank is not None and not 0 <= rank < count:
            raise bad_value(f"data_parallel_rank {rank} is out of range [0, {count}).", "data_parallel_rank", rank)
        driver = self._drivers[self._lightest() if rank is None else rank]
        limit = self.settings.max_queued
        if limit is not None and driver.engine.queued >= limit:
            self.rejected += 1
            raise busy()
        jobs = []
        for index, ask in enumerate(asks):
            # What vLLM makes of a client's name, so that one that comes twice is two requests.
            name = f"{request_id}-{uuid.uuid4().hex[:8]}"
            jobs.append(self._job(ask, name if len(asks) == 1 else f"{index}_{name}", now))
        stream: Stream = driver.submit(jobs)
        return Generation(stream, asks, self.words, self._count_abort)

    def clear(self) -> bool:
        """Forget all cached blocks of all ranks. False, and nothing is done, while anything runs."""
        if self.running:
            return False
        return all([engine.clear() for engine in self.engines])  # noqa: C419 - every one must be cleared

    async def sleep(self, level: int, mode: str) -> None:
        """Put all ranks to sleep. ``mode``: what runs is ended (``abort``), waited for (``wait``), or goes on after
        waking up (``keep``)."""
        for driver in self._drivers:
            if mode == "wait":
                await driver.idle.wait()
            driver.sleep(level, abort=mode == "abort")

    def wake(self) -> None:
        for driver in self._drivers:
            driver.wake()

    @property
    def asleep(self) -> bool:
        return any(engine.asleep is not None for engine in self.engines)

    def _add_rank(self) -> None:
        rank = len(self.engines)
        engine = Engine(self.settings)
        connector = connect(self.settings, engine, self.engine_id, rank)
        self.engines.append(engine)
        self.connectors.append(connector)
        # The same list for all: who comes later is seen by those who were there.
        connector.ranks = self.connectors
        self._drivers.append(Driver(engine, partial(self.sockets.publish, rank), connector))

    async def _start_rank(self, rank: int) -> None:
        connector = self.connectors[rank]
        connector.died = self._died
        await connector.start(self._host)
        self._drivers[rank].start()

    def _job(self, ask: Ask, job_id: str, now: float) -> Job:
        settings = self.settings
        job = Job(
            id=job_id,
            tokens=array("I", ask.ids),
            max_tokens=ask.max_tokens,
            sampler=iter(()),
            chain=HashChain(settings.block_size, settings.seed, ask.adapter, ask.salt, ask.media),
            arrived=now,
            eos=None if ask.ignore_eos else self.words.eos,
            pooling=ask.pooling,
            report_hits=ask.report_hits,
            transfer=ask.transfer,
        )
        job.sampler = self._answer(ask, job)
        return job

    def _answer(self, ask: Ask, job: Job) -> Iterator[int]:
        """The same prompt gets the same answer from every engine of the same seed, as greedy decoding would give it.

        One from garbled KV differs from that in every token.
        """
        chance = random.Random(zlib.crc32(ask.ids.tobytes(), self.settings.seed) + ask.seed * 2**32)
        pieces = self.words.pieces
        for count in itertools.count(1):
            if count == self.settings.answer_tokens and not ask.ignore_eos:
                yield self.words.eos
            else:
                place = chance.randrange(len(pieces))
                yield pieces[(place + job.garbled) % len(pieces)][0]

    def _lightest(self) -> int:
        """As vLLM's own balancer: the rank with the fewest requests, in turn where they are equal."""
        loads = [len(engine.running) + engine.queued for engine in self.engines]
        self._turn += 1
        return min(range(len(loads)), key=lambda rank: (loads[rank], (rank - self._turn) % len(loads)))

    def _count_abort(self) -> None:
        self.aborted += 1
