"""The columns of the table, and the targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.data_path.rows import FLOOR, KVGATE, UNTOKENIZED


@dataclass(frozen=True)
class Column:
    """``kib``: of the prompt; 0: one of 100,000 tokens. ``late``: milliseconds that the engine takes to answer.
    ``latency``: how long an answer takes is what counts here, not the CPU. ``key``: a target hangs on it, so that it
    gets more rounds."""

    name: str
    kib: int
    fresh: bool
    stream: bool
    connections: int
    late: int = 0
    latency: bool = False
    key: bool = False


def _column(kind: str, kib: int, fresh: bool) -> Column:
    stream = kind == "stream"
    connections = 8 if kib > 16 else 24 if stream else 16
    name = f"{kind}-{kib}-{'fresh' if fresh else 'known'}"
    key = (stream, kib, fresh) in ((False, 2, False), (False, 2, True), (False, 128, False), (True, 2, False))
    return Column(name, kib, fresh, stream, connections, key=key)


COLUMNS = (
    *(_column(kind, kib, fresh) for kind in ("answer", "stream") for kib in (2, 16, 128) for fresh in (False, True)),
    Column("long-known", 0, False, False, 4),
    Column("latency-1", 2, False, False, 1, latency=True, key=True),
    Column("latency-64", 2, False, False, 64, latency=True, key=True),
    # What 64 connections are like where engines take their time: no row is at its limit then.
    Column("latency-64-late", 2, False, False, 64, late=50, latency=True),
)


CHEAPEST = "the cheapest cache-aware peer"


@dataclass(frozen=True)
class Target:
    """``row`` in ``column``, divided by ``against`` (a row, or ``CHEAPEST``); None: the value itself, in milliseconds.
    ``most``: the largest allowed."""

    name: str
    row: str
    column: str
    against: str | None
    most: float


TARGETS: Sequence[Target] = (
    Target("64-event stream, to the cheapest peer", KVGATE, "stream-2-known", CHEAPEST, 0.75),
    Target("64-event stream, to the floor", KVGATE, "stream-2-known", FLOOR, 1.30),
    Target("2 KB repeated prompt, to the cheapest peer", KVGATE, "answer-2-known", CHEAPEST, 1.0),
    Target("2 KB fresh prompt without tokenizer, to the cheapest peer", UNTOKENIZED, "answer-2-fresh", CHEAPEST, 1.0),
    Target("128 KB known prefix, to the cheapest peer", KVGATE, "answer-128-known", CHEAPEST, 1.0),
    Target("added p50 at 64 connections, to the cheapest peer", KVGATE, "latency-64", CHEAPEST, 1.0),
    Target("added p50 at 1 connection, ms", KVGATE, "latency-1", None, 1.0),
    Target("100,000-token prompt with a known prefix, ms of CPU", KVGATE, "long-known", None, 10.0),
)
