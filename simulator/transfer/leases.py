"""The blocks that a prefill engine keeps for others, each for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from simulator.job import Job


@dataclass(slots=True)
class _Lease:
    job: Job
    ends: float
    timer: asyncio.TimerHandle


class Leases:
    """Jobs by the name that the other engine calls them. ``expire`` gets each that nobody took before its end."""

    def __init__(self, expire: Callable[[Job], None]) -> None:
        self._expire = expire
        self._leases: dict[str, _Lease] = {}

    def __len__(self) -> int:
        return len(self._leases)

    def add(self, name: str, job: Job, seconds: float) -> None:
        """Begin a lease; one of the same name ends."""
        self._end(name)
        loop = asyncio.get_running_loop()
        ends = loop.time() + seconds
        self._leases[name] = _Lease(job, ends, loop.call_at(ends, self._end, name))

    def extend(self, names: Iterable[str], seconds: float) -> None:
        """Let leases end no sooner than in so many seconds. Unknown names are passed over."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + seconds
        for name in names:
            lease = self._leases.get(name)
            if lease is not None and ends > lease.ends:
                lease.timer.cancel()
                lease.ends, lease.timer = ends, loop.call_at(ends, self._end, name)

    def find(self, name: str) -> Job | None:
        lease = self._leases.get(name)
        return lease.job if lease is not None else None

    def take(self, name: str) -> Job | None:
        """End a lease; None: there is none of that name (any more)."""
        lease = self._leases.pop(name, None)
        if lease is None:
            return None
        lease.timer.cancel()
        return lease.job

    def close(self) -> None:
        """End all, without a word."""
        for lease in self._leases.values():
            lease.timer.cancel()
        self._leases.clear()

    def _end(self, name: str) -> None:
        job = self.take(name)
        if job is not None:
            self._expire(job)
