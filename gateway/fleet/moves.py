"""How fast an engine's KV moves lately, from what its scrapes count since its start.

Rules: what is older counts less, by transfers and by time. By transfers, so that a network that has become slower is
known within some dozens of them, however many came before. By time, since a placement that finds moving too slow moves
nothing, and so would never see that it has become fast again: what was seen fades, and whoever reads it goes back to
what is usual (``gateway.scheduling.split_cost``).

Pure: no clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.framework import Moved

MOST_TRANSFERS = 50.0
"""That count: enough for a mean of transfers that differ ten-fold, and a minute of a busy engine."""

HALF_LIFE = 120.0
"""Seconds in which what was seen counts half. From ``MOST_TRANSFERS`` to a tenth of one takes nine of them, 18 minutes:
a slow network is tried again about three times an hour."""

NOTHING = Moved()


@dataclass(slots=True)
class Moves:
    """``lately``: sums like those of the scrapes, of which only what they are to each other matters."""

    lately: Moved = NOTHING
    _before: Moved = field(default=NOTHING, init=False)
    _at: float = field(default=0.0, init=False)

    def seen(self, total: Moved, at: float) -> Moved:
        """``total``: since the engine's start, as a scrape at ``at`` says. Returns what is ``lately`` now."""
        before = self._before
        if total.transfers < before.transfers or total.bytes < before.bytes or total.tokens < before.tokens:
            before = NOTHING  # it has begun anew
        fade = 0.5 ** (max(0.0, at - self._at) / HALF_LIFE)
        self._before, self._at = total, at
        if total == NOTHING == self.lately:
            return NOTHING
        lately = self.lately
        transfers = lately.transfers * fade + total.transfers - before.transfers
        cut = MOST_TRANSFERS / transfers if transfers > MOST_TRANSFERS else 1.0
        self.lately = Moved(
            transfers=transfers * cut,
            bytes=(lately.bytes * fade + total.bytes - before.bytes) * cut,
            seconds=(lately.seconds * fade + max(0.0, total.seconds - before.seconds)) * cut,
            tokens=(lately.tokens * fade + total.tokens - before.tokens) * cut,
        )
        return self.lately
