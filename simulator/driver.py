"""Steps an engine in real time on the event loop, and hands each request its tokens.

One task for each engine. Its steps follow each other without drift while there is work, and it sleeps while there is
none. Knows nothing of HTTP.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from simulator.blocks import KvEvent
from simulator.engine import Engine
from simulator.job import Finish, Job, Output
from simulator.transfer.connector import Connector, Load

log = logging.getLogger("simulator")


class Stream:
    """The outputs of one request's jobs as they are sampled. ``abort`` whatever of it still runs."""

    def __init__(self, driver: Driver, jobs: Sequence[Job]) -> None:
        self.jobs = jobs
        self._driver = driver
        self._outputs: asyncio.Queue[Output] = asyncio.Queue()
        self._begun = asyncio.Event()
        self._running = len(jobs)

    def put(self, output: Output) -> None:
        self._outputs.put_nowait(output)
        self._begun.set()

    async def begin(self) -> None:
        """Wait until there is an output."""
        await self._begun.wait()

    async def __aiter__(self) -> AsyncIterator[Output]:
        """Outputs until every job has ended. Never ends if a job was aborted by somebody else."""
        while self._running:
            output = await self._outputs.get()
            self._running -= output.finish is not None
            yield output

    async def deliver(self, job: Job) -> bool:
        """Wait until an ended job's answer may go out; False: it has failed meanwhile."""
        return await self._driver.connector.deliver(job)

    def handover(self, job: Job) -> dict[str, Any] | None:
        """What an ended job's answer carries for another engine."""
        return self._driver.connector.answer(job)

    def end(self, job: Job, reason: Finish) -> None:
        """End one job early (a stop string); no more outputs of it are due."""
        if self._driver.abort(job, reason):
            self._running -= 1

    def abort(self) -> bool:
        """True if anything was still running: its blocks are free now."""
        running = [job for job in self.jobs if self._driver.abort(job, Finish.ABORT)]
        return bool(running)


class Driver:
    """Owns the engine's task. ``publish`` gets the events of each step that has some; ``connector`` moves KV.
    ``idle``: set while it has no job."""

    def __init__(self, engine: Engine, publish: Callable[[list[KvEvent]], None], connector: Connector) -> None:
        self.engine = engine
        self.connector = connector
        self._publish = publish
        self._streams: dict[Job, Stream] = {}
        self._work = asyncio.Event()
        self._awake = asyncio.Event()
        self._awake.set()
        self.idle = asyncio.Event()
        self.idle.set()
        connector.loaded = self._load
        connector.freed = self._work.set
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="simulated-engine")
        self._task.add_done_callback(_report)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def submit(self, jobs: Sequence[Job]) -> Stream:
        """Queue jobs that belong to one request. Raises ValueError for one that can never run."""
        stream = Stream(self, jobs)
        for job in jobs:
            self.connector.enter(job)
            self.engine.submit(job)
            self._streams[job] = stream
        self.idle.clear()
        self._work.set()
        return stream

    def abort(self, job: Job, reason: Finish) -> bool:
        self._streams.pop(job, None)
        if not self.engine.abort(job, reason):
            return False
        self.connector.ended(job)
        self._work.set()
        return True

    def sleep(self, level: int, *, abort: bool) -> None:
        """Step no more. ``abort``: end what runs; else it goes on after waking up, with its KV if ``level`` is 0."""
        for job, stream in list(self._streams.items()) if abort else ():
            if self.abort(job, Finish.ABORT):
                stream.put(Output(job, -1, Finish.ABORT))
        self.engine.asleep = level
        self._awake.clear()
        if level:
            self.engine.clear()  # which it announces with its first step after waking up

    def wake(self) -> None:
        self.engine.asleep = None
        self._awake.set()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        ended = loop.time()
        while True:
            if not self._awake.is_set():
                await self._awake.wait()
                ended = loop.time()
            self._work.clear()
            step = self.engine.begin(loop.time())
            begun = self.engine.begun()
            for job in begun:
                self.connector.fetch(job)
            if step is None:
                if begun:
                    self._announce()
                if not self._streams:
                    self.idle.set()
                await self._work.wait()
                ended = loop.time()
                continue
            # From the end of the last step, not from now: what the loop was late for does not add up over a
            # request. But where it is late by more than a step it was starved, and that time is gone.
            now = loop.time()
            ended = max(ended, now - step.seconds) + step.seconds
            # Sleep even where the time is over: other tasks must run between two steps.
            await asyncio.sleep(max(0.0, ended - now))
            outputs = self.engine.finish(step, loop.time())
            # Before the tokens: who has an answer may expect its blocks to have been announced.
            self._announce()
            for output in outputs:
                self._hand_out(output)

    def _announce(self) -> None:
        if events := self.engine.events():
            self._publish(events)

    def _hand_out(self, output: Output) -> None:
        stream = self._streams.get(output.job)
        if output.finish is not None:
            # First: who has the answer may send the other leg.
            self.connector.ended(output.job)
            self._streams.pop(output.job, None)
        if stream is not None:
            stream.put(output)

    def _load(self, job: Job, load: Load) -> None:
        """The connector's word on the KV that a job waits for."""
        if load is Load.FAILED:
            if output := self.engine.lose(job, recompute=self.connector.recomputes):
                self._hand_out(output)
        else:
            job.garbled = load is Load.GARBLED
            self.engine.arrive(job)
        self._work.set()


def _report(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("the engine's loop failed: %r", error, exc_info=error)
