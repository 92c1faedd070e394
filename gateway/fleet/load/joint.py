"""One ledger of several on the same engine core, each in a process of its own: what it hears of the others' bookings,
and what it tells of its own.

The others' part is added into the ledger's own figures when a row of theirs changes. So to read a load costs the same
with others and without, and whoever reads it sees all that this gateway has sent there.
"""

from __future__ import annotations

from collections.abc import Callable
from math import exp
from typing import Any

from gateway.fleet.load.ledger import MOST_SETTLED, SETTLED_KEPT, Ledger
from gateway.fleet.load.others import NOTHING, Others, Row
from gateway.framework.cost import LATELY, STALE


def join(ledger: Ledger, touched: Callable[[], object], catch_up: Callable[[], object]) -> None:
    """Have the ledger count others' bookings, as ``hear`` tells them. ``touched``, ``catch_up``: as of ``Others``."""
    ledger.others = others = Others(touched, catch_up)
    others.own_ended, others.own_share, others.own_share_at = ledger._begun, ledger._share, ledger._share_at


def leave(ledger: Ledger) -> None:
    """The ledger counts its own bookings only, from now on."""
    if (others := ledger.others) is not None:
        for writer in list(others.rows):
            hear(ledger, writer, NOTHING)
        ledger.others = None


def hear(ledger: Ledger, writer: int, row: tuple[Any, ...]) -> None:
    """The row of ``writer`` is this now: a ``Row``, or its fields in a plain tuple. ``NOTHING``: it is gone, and its
    requests with it. Some dozens of rows are heard at a look, so that little may be called in here."""
    others = ledger.others
    assert others is not None
    was = others.rows.get(writer)
    if was == row:
        return
    requests, kv, prefill, attention, first, tokens, seconds, ended, share, share_at, prefilled, settled, more = row
    gone = not requests and row == NOTHING
    if was is None:
        if gone:
            return
        was = Row(prefilled=prefilled, settled=settled, settled_tokens=more)  # what it has counted before is no news
    if gone:
        del others.rows[writer]
    else:
        others.rows[writer] = row
    if requests != was[0]:
        others.requests += (change := requests - was[0])
        ledger.requests += change
    if kv != was[1]:
        others.kv_tokens += (change := kv - was[1])
        ledger.kv_tokens += change
    if settled != was[11]:
        _settle(ledger, was, settled - was[11], more - was[12])
    if share_at != was[9] or share != was[8]:
        _add_share(ledger, share, share_at, was[8], was[9])
    if prefilled != was[10] and not gone:
        ledger.prefilled += prefilled - was[10] if prefilled > was[10] else prefilled  # less: it is another process
    if prefill != was[2] or attention != was[3]:  # a prompt may follow one of as many tokens, and another context
        others.prefill_tokens += (change := prefill - was[2])
        ledger._prefill += change
        others.prefill_attention += (change := attention - was[3])
        ledger.prefill_attention += change
    if first != was[4] or ended != was[7] or (was[2] and not prefill):
        if was[2] and was[4] == others.first_booked:
            if gone and was[4] < ledger.first_own:
                others.own_ended = ledger._monotonic()  # it took the first prompt of all with it
            others.find_first()
        elif prefill and first < others.first_booked:
            others.first_booked, others.first_tokens, others.first_seconds = first, tokens, seconds
        if ended > others.ended:
            others.ended = ended
        ledger.find_first()
    ledger.rates = STALE


def own_row(ledger: Ledger) -> tuple[Any, ...]:
    """The ledger's own part, for the others: the fields of ``Row``, of which to make one takes longer."""
    ledger.refresh()
    others, head = ledger.others, ledger._head
    assert others is not None
    prefill = ledger._prefill - others.prefill_tokens
    return (
        ledger.requests - others.requests,
        ledger.kv_tokens - others.kv_tokens,
        prefill,
        ledger.prefill_attention - others.prefill_attention if prefill else 0.0,
        0.0 if head is None else head._booked_at,
        0 if head is None else head._prefill,
        0.0 if head is None else head._seconds,
        others.own_ended,
        others.own_share,
        others.own_share_at,
        others.own_prefilled,
        others.own_settled,
        others.own_settled_tokens,
    )


def _settle(ledger: Ledger, was: tuple[Any, ...], requests: int, tokens: int) -> None:
    """So many of a writer's requests have ended since its last row, with so many tokens: a scrape may still show them.

    Fewer than before: it is another process, or gone, and all that it had has ended.
    """
    if requests < 0:
        requests, tokens = was[0], was[1]
    settled, now = ledger._settled, ledger._monotonic()
    while settled and settled[0][0] < now - SETTLED_KEPT:
        settled.popleft()
    if requests == 1:
        settled.append((now, max(0, tokens)))
    elif requests > 0:
        settled.extend([(now, max(0, tokens) // requests)] * min(requests, MOST_SETTLED))


def _add_share(ledger: Ledger, share: float, at: float, old: float, old_at: float) -> None:
    """Replace a writer's part of the prefill share: each is a share and its time, which says nothing without a share.

    Taken together at the latest of the times. A row may say any age, and ``exp`` of an old one's is beyond all floats.
    """
    total, before = ledger._share, ledger._share_at
    latest = max(before if total else 0.0, at if share else 0.0, old_at if old else 0.0)
    if total:
        total *= exp((before - latest) / LATELY)
    if share:
        total += share * exp((at - latest) / LATELY)
    if old:
        total -= old * exp((old_at - latest) / LATELY)
    ledger._share, ledger._share_at = total if total > 0 else 0.0, latest
