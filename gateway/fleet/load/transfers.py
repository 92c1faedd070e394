"""The recent speed of an engine's KV transfers, from counters that its scrapes report since its start.

Rules: older transfers count less, by number and by time. By number, so that a network that has become slower is noticed
within some dozens of transfers, however many came before. By time, because a scheduler that finds transfers too slow
makes none, and would never see that they are fast again: measurements fade, and the scheduler returns to its configured
rate (``gateway.scheduling.split_cost``).

Pure: no clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.framework.fleet import NO_TRANSFERS, TransferStats

MOST_TRANSFERS = 50.0
"""Transfers that count: enough for a mean of transfers that differ ten-fold, and a minute of a busy engine."""

HALF_LIFE = 120.0
"""Seconds after which a transfer counts half. From ``MOST_TRANSFERS`` to a tenth of one takes nine half-lives, 18
minutes: a slow network is tried again about three times an hour."""


@dataclass(slots=True)
class RecentTransfers:
    """``lately``: weighted sums. Only their ratios mean something: seconds per byte, bytes per token."""

    lately: TransferStats = NO_TRANSFERS
    _before: TransferStats = field(default=NO_TRANSFERS, init=False)
    _at: float = field(default=0.0, init=False)

    def update(self, total: TransferStats, at: float) -> TransferStats:
        """``total``: since the engine's start, by a scrape at ``at`` (Clock.monotonic()). Returns ``lately``."""
        before = self._before
        if total.count < before.count or total.bytes < before.bytes or total.tokens < before.tokens:
            before = NO_TRANSFERS  # another process
        fade = 0.5 ** (max(0.0, at - self._at) / HALF_LIFE)
        self._before, self._at = total, at
        if total == NO_TRANSFERS == self.lately:
            return NO_TRANSFERS
        lately = self.lately
        count = lately.count * fade + total.count - before.count
        cut = MOST_TRANSFERS / count if count > MOST_TRANSFERS else 1.0
        self.lately = TransferStats(
            count=count * cut,
            bytes=(lately.bytes * fade + total.bytes - before.bytes) * cut,
            seconds=(lately.seconds * fade + max(0.0, total.seconds - before.seconds)) * cut,
            tokens=(lately.tokens * fade + total.tokens - before.tokens) * cut,
        )
        return self.lately
