"""One ledger of several on the same engine core, each in a process of its own: what it hears of the others' bookings,
and what it tells of its own.

The others' part is added into the ledger's own figures when a row of theirs changes. So to read a load costs the same
with others and without, and whoever reads it sees all that this gateway has sent there.
"""

from __future__ import annotations

from collections.abc import Callable
from math import exp

from gateway.fleet.load.ledger import SETTLED_KEPT, Ledger
from gateway.fleet.load.others import NOTHING, Others, Row
from gateway.framework.cost import LATELY, STALE


def join(ledger: Ledger, touched: Callable[[], object], catch_up: Callable[[], object]) -> None:
    """Have the ledger count others' bookings, as ``hear`` tells them. ``touched``, ``catch_up``: as of ``Others``."""
    ledger.others = others = Others(touched, catch_up)
    others.own_ended = ledger._begun


def leave(ledger: Ledger) -> None:
    """The ledger counts its own bookings only, from now on."""
    if (others := ledger.others) is not None:
        for writer in list(others.rows):
            hear(ledger, writer, NOTHING)
        ledger.others = None


def hear(ledger: Ledger, writer: int, row: Row) -> None:
    """The row of ``writer`` is this now. ``NOTHING``: it is gone, and its requests with it."""
    others = ledger.others
    assert others is not None
    was = others.rows.get(writer)
    if was == row:
        return
    gone = row == NOTHING
    if was is None:
        if gone:
            return
        # What it counts since its start is no news.
        was = Row(prefilled=row[10], settled=row[11], settled_tokens=row[12])
    requests, kv, prefill, attention, first, _, _, ended, share, share_at, prefilled, settled, settled_tokens = row
    ledger.requests += (more := requests - was[0])
    others.requests += more
    ledger.kv_tokens += (more := kv - was[1])
    others.kv_tokens += more
    if settled != was[11]:
        _settle(ledger, was, settled - was[11], settled_tokens - was[12])
    if share != was[8]:
        _add_share(ledger, others, (share, share_at), (was[8], was[9]))
    if prefilled != was[10] and not gone:
        ledger.prefilled += (seconds := prefilled - was[10] if prefilled > was[10] else prefilled)
        others.prefilled += seconds
    if gone:
        del others.rows[writer]
    else:
        others.rows[writer] = row
    if first != was[4] or ended != was[7] or prefill != was[2]:
        ledger._prefill += (more := prefill - was[2])
        others.prefill_tokens += more
        ledger.prefill_attention += (change := attention - was[3])
        others.prefill_attention += change
        if gone and was[2] and was[4] == others.first_booked < ledger.first_own:
            others.own_ended = ledger._monotonic()  # it took the first prompt of all with it
        others.find_first()
        ledger.find_first()
    ledger.rates = STALE


def own_row(ledger: Ledger) -> Row:
    """The ledger's own part, for the others."""
    ledger.refresh()
    others, head, at = ledger.others, ledger._head, ledger._share_at
    assert others is not None
    prefill = ledger._prefill - others.prefill_tokens
    share = ledger._share
    if others.share:
        share = max(0.0, share - others.share * exp((others.share_at - at) / LATELY))
    return Row(
        ledger.requests - others.requests,
        ledger.kv_tokens - others.kv_tokens,
        prefill,
        ledger.prefill_attention - others.prefill_attention if prefill else 0.0,
        0.0 if head is None else head._booked_at,
        0 if head is None else head._prefill,
        0.0 if head is None else head._seconds,
        others.own_ended,
        share,
        at,
        ledger.prefilled - others.prefilled,
        others.own_settled,
        others.own_settled_tokens,
    )


def _settle(ledger: Ledger, was: Row, requests: int, tokens: int) -> None:
    """So many of a writer's requests have ended since its last row, with so many tokens: a scrape may still show them.

    Fewer than before: it is another process, or gone, and all that it had has ended.
    """
    if requests < 0:
        requests, tokens = was.requests, was.kv_tokens
    settled, now = ledger._settled, ledger._monotonic()
    while settled and settled[0][0] < now - SETTLED_KEPT:
        settled.popleft()
    if requests > 0:
        settled.extend([(now, max(0, tokens) // requests)] * requests)


def _add_share(ledger: Ledger, others: Others, new: tuple[float, float], old: tuple[float, float]) -> None:
    """Replace a writer's part of the prefill share. Each is a share and its time."""
    at = max(ledger._share_at, new[1], old[1])
    more = new[0] * exp((new[1] - at) / LATELY) - old[0] * exp((old[1] - at) / LATELY)
    ledger._share = max(0.0, ledger._share * exp((ledger._share_at - at) / LATELY) + more)
    others.share = max(0.0, others.share * exp((others.share_at - at) / LATELY) + more)
    ledger._share_at = others.share_at = at
