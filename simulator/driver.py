"""Steps an engine in real time on the event loop, and hands each request its tokens.

One task for each engine. Its steps follow each other without drift while there is work, and it sleeps while there is
none. Knows nothing of HTTP.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence

from simulator.blocks import KvEvent
from simulator.engine import Engine
from simulator.job import Finish, Job, Output

log = logging.getLogger("simulator")


class Stream:
    """The outputs of one request's jobs as they are sampled. ``abort`` whatever of it still runs."""

    def __init__(self, driver: Driver, jobs: Sequence[Job]) -> None:
        self.jobs = jobs
        self._driver = driver
        self._outputs: asyncio.Queue[Output] = asyncio.Queue()
        self._running = len(jobs)

    def put(self, output: Output) -> None:
        self._outputs.put_nowait(output)

    async def __aiter__(self) -> AsyncIterator[Output]:
        """Outputs until every job has ended. Never ends if a job was aborted by somebody else."""
        while self._running:
            output = await self._outputs.get()
            self._running -= output.finish is not None
            yield output

    def end(self, job: Job, reason: Finish) -> None:
        """End one job early (a stop string); no more outputs of it are due."""
        if self._driver.abort(job, reason):
            self._running -= 1

    def abort(self) -> bool:
        """True if anything was still running: its blocks are free now."""
        running = [job for job in self.jobs if self._driver.abort(job, Finish.ABORT)]
        return bool(running)


class Driver:
    """Owns the engine's task. ``publish`` gets the events of each step that has some."""

    def __init__(self, engine: Engine, publish: Callable[[list[KvEvent]], None]) -> None:
        self.engine = engine
        self._publish = publish
        self._streams: dict[Job, Stream] = {}
        self._work = asyncio.Event()
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
            self.engine.submit(job)
            self._streams[job] = stream
        self._work.set()
        return stream

    def abort(self, job: Job, reason: Finish) -> bool:
        self._streams.pop(job, None)
        return self.engine.abort(job, reason)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        ended = loop.time()
        while True:
            step = self.engine.begin(loop.time())
            if step is None:
                self._work.clear()
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
            if events := self.engine.events():
                self._publish(events)
            for output in outputs:
                stream = self._streams.get(output.job)
                if stream is not None:
                    stream.put(output)
                if output.finish is not None:
                    self._streams.pop(output.job, None)


def _report(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("the engine's loop failed: %r", error, exc_info=error)
