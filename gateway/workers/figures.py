"""The service's metrics: its workers' and the parent's own, looked at each second so that a death loses little."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Hashable

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4

from gateway.framework import Clock
from gateway.observability.families import Families
from gateway.workers.asking import Asking, NoAnswer
from gateway.workers.crew import Crew
from gateway.workers.exposition import Totals
from gateway.workers.post import left_figures
from gateway.workers.worker import Worker

log = logging.getLogger("kvgate.workers")

EVERY = 1.0
"""Seconds between two looks: what a worker that is killed may have counted in vain. One that ends in order leaves its
last figures."""

SHARE = 0.02
"""The most of a core that looking takes: with thousands of series a look takes longer, and comes less often."""

PATIENCE = 5.0
"""Seconds for a worker's text. One that hangs is killed before."""


class Figures:
    """Reads the workers' metrics and shows them together."""

    def __init__(self, crew: Crew, asking: Asking, clock: Clock, version: str) -> None:
        self._crew = crew
        self._asking = asking
        self._clock = clock
        self._ours = Families(clock, version)
        self._totals = Totals({family.name: family.over for family in self._ours.all})
        self._gone: list[Worker] = []
        self._one_at_a_time = asyncio.Lock()

    async def follow(self) -> None:
        """Look for ever."""
        while True:
            began = self._clock.monotonic()
            async with self._one_at_a_time:
                await self._look()
            await asyncio.sleep(max(EVERY, (self._clock.monotonic() - began) / SHARE))

    def gone(self, worker: Worker) -> None:
        """This worker has ended."""
        self._gone.append(worker)

    async def render(self) -> tuple[bytes, str]:
        """The text format and its content type."""
        async with self._one_at_a_time:
            await self._look()
            alive = self._crew.alive
            parts = []
            for part in self._totals.text(alive[0] if alive else None):
                parts.append(part)
                await asyncio.sleep(0)
        return "".join(parts).encode(), CONTENT_TYPE_PLAIN_0_0_4

    async def _look(self) -> None:
        try:
            answers = await self._asking.ask_all(self._crew.alive, "GET", "/metrics", seconds=PATIENCE)
        except NoAnswer:  # then what was last known is shown
            answers = {}
        texts: dict[Hashable, str] = {
            worker: answer.body.decode()
            for worker, answer in answers.items()
            if answer.status == 200 and not worker.ended.done()
        }
        gone, self._gone = self._gone, []
        for worker in gone:
            if (left := await asyncio.to_thread(_left, worker)) is not None:
                self._totals.look({worker: left})
            self._totals.gone(worker)
        # The parent has no figures of requests; its own process's are added to those of the workers.
        await asyncio.to_thread(self._totals.look, {**texts, self: self._of_the_parent()})

    def _of_the_parent(self) -> str:
        serving = {worker.number for worker in self._crew.serving}
        for number, restarts in enumerate(self._crew.restarts):
            self._ours.worker_up[str(number),] = number in serving
            self._ours.worker_restarts[str(number),] = restarts
        return b"".join(self._ours.text()).decode()


def _left(worker: Worker) -> str | None:
    """What the worker has left, if it has ended in order."""
    left = left_figures(worker.seat.directory, worker.pid)
    try:
        text = left.read_text()
        left.unlink()
    except OSError:
        return None
    return text
