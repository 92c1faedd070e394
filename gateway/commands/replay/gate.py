"""Where calls wait before they are placed, in a replay with tenants. Without a gate each call is placed as it comes."""

from __future__ import annotations

from typing import Protocol

from gateway.commands.replay.seat import Flight, Seat


class Gate(Protocol):
    """Between the arrival of a call and its placement.

    A gate sends each call exactly once (``Legs.send``, or ``decide`` and ``commit``), or refuses it (``Legs.refuse``).
    A leg that is sent again after an engine died does not wait. After the other calls ``turned`` is called: once for
    all that happened in one event.
    """

    def arrive(self, flight: Flight) -> None:
        """A call has come: it is sent now, or it waits, or it is refused."""
        ...

    def first_token(self, flight: Flight) -> None:
        """The first token of a call that was sent is there."""
        ...

    def settled(self, flight: Flight, *, answered: bool) -> None:
        """A call has ended, and what it had booked is given back."""
        ...

    def look_at(self, seat: Seat) -> None:
        """An engine was scraped, or it came, went or failed."""
        ...

    def turned(self) -> None:
        """Some of the above has happened, and may have made room."""
        ...
