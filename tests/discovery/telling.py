"""What a source tells, for tests of sources."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from gateway.core.tasks import TaskSet
from gateway.discovery.source import Source
from gateway.fleet.settings import EndpointSettings


@dataclass
class Told:
    """``lists``: all that it found, the last one last. ``lost``: why it could not be read."""

    lists: list[list[EndpointSettings]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)

    def on_found(self, endpoints: Sequence[EndpointSettings], wrong: Sequence[str] = (), problem: str = "", /) -> None:
        self.lists.append(list(endpoints))
        self.wrong = list(wrong)
        if problem:
            self.lost.append(problem)

    @property
    def urls(self) -> list[str] | None:
        """Of the last list; None: there was none."""
        return sorted(endpoint.url for endpoint in self.lists[-1]) if self.lists else None


@contextlib.asynccontextmanager
async def followed(source: Source) -> AsyncIterator[Told]:
    told, tasks = Told(), TaskSet()
    tasks.start(source.follow(told.on_found, told.lost.append), name="follow")
    try:
        yield told
    finally:
        await tasks.close()
