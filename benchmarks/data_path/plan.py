"""The columns of the table, and the targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.data_path.builds import COMPILED
from benchmarks.data_path.engines import EARLIEST


@dataclass(frozen=True)
class Column:
    """``kib``: of the prompt; 0: one of 100,000 tokens. ``late``: milliseconds that the engine takes to answer.
    ``latency``: how long an answer takes is what counts here, not the CPU. ``key``: a target hangs on it, so that it
    gets more rounds. No ``connections``: nobody asks, and what counts are hundredths of a core."""

    name: str
    kib: int
    fresh: bool
    stream: bool
    connections: int
    late: int = 0
    latency: bool = False
    key: bool = False

    def too_early(self, p50: float) -> bool:
        """Whether answers come earlier than the engines': the router has dropped the order to be late. ``p50``:
        milliseconds."""
        return p50 < EARLIEST * self.late

    @property
    def unit(self) -> str:
        """Of the values that are compared."""
        return "ms" if self.latency else "µs" if self.connections else "% of a core"


def _column(kind: str, kib: int, fresh: bool) -> Column:
    stream = kind == "stream"
    connections = 8 if kib > 16 else 24 if stream else 16
    name = f"{kind}-{kib}-{'fresh' if fresh else 'known'}"
    key = (stream, kib, fresh) in ((False, 2, False), (False, 128, False), (True, 2, False))
    return Column(name, kib, fresh, stream, connections, key=key)


UNASKED = Column("unasked", 0, False, False, 0, key=True)

COLUMNS = (
    *(_column(kind, kib, fresh) for kind in ("answer", "stream") for kib in (2, 16, 128) for fresh in (False, True)),
    Column("long-known", 0, False, False, 4, key=True),
    Column("latency-1", 2, False, False, 1, latency=True, key=True),
    Column("latency-64", 2, False, False, 64, latency=True, key=True),
    # What 64 connections are like where engines take their time: no row is at its limit then.
    Column("latency-64-late", 2, False, False, 64, late=50, latency=True),
    UNASKED,
)


@dataclass(frozen=True)
class Target:
    """A gateway's value in ``column``: ``to_peer``, its ratio to the cheapest cache-aware router's; else the value
    itself, in milliseconds, or hundredths of a core. ``pure``, ``compiled``: the most that it may be."""

    name: str
    column: str
    to_peer: bool
    pure: float
    compiled: float

    def most(self, kind: str) -> float:
        """Of a build of this kind (``Build.kind``)."""
        return self.compiled if kind == COMPILED else self.pure


TARGETS: Sequence[Target] = (
    Target("2 KB known prompt, to the cheapest peer", "answer-2-known", True, 2.4, 1.9),
    Target("64-event stream, to the cheapest peer", "stream-2-known", True, 1.1, 0.9),
    Target("128 KB known prompt, to the cheapest peer", "answer-128-known", True, 1.3, 1.1),
    Target("added p50 at 64 connections, to the cheapest peer", "latency-64", True, 2.0, 1.5),
    Target("added p50 at 1 connection, ms", "latency-1", False, 1.0, 1.0),
    Target("100,000-token known prompt, ms of CPU", "long-known", False, 2.5, 2.0),
    Target("unasked, % of a core", UNASKED.name, False, 0.7, 0.7),
)

LAG = Target("event-loop lag beside 20 fresh prompts of 100,000 tokens, p99, ms", "lag", False, 10.0, 10.0)
"""Measured apart (``lag``): a gateway with a clock in its loop."""
