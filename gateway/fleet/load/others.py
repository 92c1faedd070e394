"""What others have booked on an engine core: the rows of other processes of this gateway, on this host and elsewhere.

A *row* is one writer's part of a core's load: the sum of its open bookings, not the bookings. So a row that is lost
heals with the next one, and nothing stays booked of a writer that is gone: its row is zero.

The engine computes one prompt after another, whoever sent it. So of all prompts that wait there only the first has
progress: the one that was booked first of all. It was begun when the one before it ended, or when it was booked itself.
Each row says when the first of its own prompts was booked, and when one of its own was last seen to end as the first of
all; the first of all follows from these.

Pure: no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import exp, inf
from typing import Any, NamedTuple

from gateway.framework.cost import LATELY


class Row(NamedTuple):
    """One writer's part of the load of one engine core. Times are CLOCK_MONOTONIC of this host, and 0 if there is none.

    ``requests``, ``kv_tokens``, ``prefill_tokens``, ``prefill_attention``: its part of what ``Load`` has under these
    names. ``first_booked``: when the first of its prompts that wait there was booked, which has ``first_tokens`` new
    tokens and takes ``first_seconds``, as it estimated. ``ended``: when a prompt of its own was last removed that was
    the first of all. ``share``: its part of the prefill share (``framework.cost.Sums``) at ``share_at``.

    Since the writer's start, growing: ``prefilled``: estimated seconds of its prompts that were computed;
    ``settled``, ``settled_tokens``: requests that have ended, and the KV tokens that they held.
    """

    requests: int = 0
    kv_tokens: int = 0
    prefill_tokens: int = 0
    prefill_attention: float = 0.0
    first_booked: float = 0.0
    first_tokens: int = 0
    first_seconds: float = 0.0
    ended: float = 0.0
    share: float = 0.0
    share_at: float = 0.0
    prefilled: float = 0.0
    settled: int = 0
    settled_tokens: int = 0


NOTHING = Row()
"""The row of a writer that is not there."""


def merged(rows: Iterable[Row]) -> Row:
    """The rows of several writers as one of all of them."""
    rows = list(rows)
    if len(rows) == 1:
        return rows[0]
    waiting = [row for row in rows if row.prefill_tokens]
    first = min(waiting, key=lambda row: row.first_booked, default=NOTHING)
    at = max((row.share_at for row in rows), default=0.0)
    return Row(
        sum(row.requests for row in rows),
        sum(row.kv_tokens for row in rows),
        sum(row.prefill_tokens for row in rows),
        sum(row.prefill_attention for row in rows),
        first.first_booked,
        first.first_tokens,
        first.first_seconds,
        max((row.ended for row in rows), default=0.0),
        sum(row.share * exp((row.share_at - at) / LATELY) for row in rows),
        at,
        sum(row.prefilled for row in rows),
        sum(row.settled for row in rows),
        sum(row.settled_tokens for row in rows),
    )


class Others:
    """The others' part of one ledger, and what the ledger tells them beside its own figures.

    ``touched``: called when the ledger's own part has changed. ``catch_up``: called when it needs the others' newest
    rows. ``rows``: the fields of ``Row`` by writer, of those that have any. The sums are those of ``Row``, of all of
    them; the ledger's own figures contain them. ``first_booked``, ``first_tokens``, ``first_seconds``: of the first of
    their prompts; the first is ``inf`` where none waits. ``ended``: when the first prompt of all was last removed, as
    they say.

    ``own_ended``, ``own_prefilled``, ``own_share``, ``own_share_at``, ``own_settled``, ``own_settled_tokens``: the
    ledger's own, as in ``Row``. Its own part of the other figures is what the others leave of them: these are whole
    numbers, or halves, so that nothing is lost by rounding.
    """

    __slots__ = (
        "catch_up",
        "ended",
        "first_booked",
        "first_seconds",
        "first_tokens",
        "kv_tokens",
        "own_ended",
        "own_prefilled",
        "own_settled",
        "own_settled_tokens",
        "own_share",
        "own_share_at",
        "prefill_attention",
        "prefill_tokens",
        "requests",
        "rows",
        "touched",
    )

    def __init__(self, touched: Callable[[], object], catch_up: Callable[[], object]) -> None:
        self.touched = touched
        self.catch_up = catch_up
        self.rows: dict[int, tuple[Any, ...]] = {}
        self.requests = self.kv_tokens = self.prefill_tokens = 0
        self.prefill_attention = 0.0
        self.first_booked, self.first_tokens, self.first_seconds, self.ended = inf, 0, 0.0, 0.0
        self.own_ended = self.own_prefilled = self.own_share = self.own_share_at = 0.0
        self.own_settled = self.own_settled_tokens = 0

    def find_first(self) -> None:
        """Find the first prompt of all rows anew: one of them has another."""
        first, tokens, seconds, ended = inf, 0, 0.0, 0.0
        for row in self.rows.values():
            if row[7] > ended:
                ended = row[7]
            if row[2] and row[4] < first:
                first, tokens, seconds = row[4:7]
        self.first_booked, self.first_tokens, self.first_seconds, self.ended = first, tokens, seconds, ended
