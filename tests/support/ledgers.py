"""Reservations with their prefill booked at once."""

from __future__ import annotations

from gateway.fleet.load.ledger import Ledger, Reservation
from tests.support.candidates import endpoint


def reserve(
    ledger: Ledger,
    prefill_tokens: int,
    kv_tokens: int,
    *,
    seconds: float = 0.0,
    expires_prefill_at: float | None = None,
) -> Reservation:
    reservation = Reservation(ledger, kv_tokens, endpoint())
    reservation.book_prefill(prefill_tokens, seconds=seconds, expires_prefill_at=expires_prefill_at)
    return reservation
