"""Reservations with their prefill booked at once."""

from __future__ import annotations

from gateway.fleet.load.ledger import Ledger, Reservation
from tests.support.candidates import endpoint


def reserve(
    ledger: Ledger, prefill_tokens: int, kv_tokens: int, *, expires_prefill_at: float | None = None
) -> Reservation:
    reservation = Reservation(ledger, kv_tokens, endpoint())
    reservation.book_prefill(prefill_tokens, expires_prefill_at=expires_prefill_at)
    return reservation
