"""Which cells the rows of ``LimitsTable`` have: of meters, and of accounts."""

from __future__ import annotations

from gateway.tenants.gcra import CELLS


class Kind:
    """A kind of rows. ``rows``: as many names. ``floats``: cells of each. ``counters``: cells of each worker in it.
    ``text``: bytes for the name, if it has to be known; a multiple of 8."""

    def __init__(self, rows: int, floats: int, counters: int, text: int = 0) -> None:
        self.rows, self.floats, self.counters, self.text = rows, floats, counters, text

    def row_cells(self, workers: int) -> int:
        return self.floats + self.counters * workers + (1 + self.text // 8 if self.text else 0)

    def cells(self, workers: int) -> int:
        """The directory (hash, time of use and number of the last change of each row), and the rows."""
        return self.rows * (3 + self.row_cells(workers))


LIMITS = 5
WHOLE, PART, WANT, ROOM, ELSEWHERE, FAIR, TOLD = (2 * CELLS + LIMITS * block for block in range(7))
"""Where cells of a meter begin that say of each of its limits, where hosts divide them: the whole (0: there is no such
limit); the part that this host has; what it wants, since it was asked last; what is left, and what is in use elsewhere,
as the others were told last; the part to which it has to come down, if another host has less (0: it need not). And
when that was told."""

METERS = Kind(16384, floats=TOLD + 1, counters=3, text=32)
"""Two buckets, and parts; concurrent requests, tokens in flight, queued ones. As many as pairs of a caller and a model
are looked up only once (``gate.MAX_SCOPES``). The text is a hash of the meter's name, the same on all hosts."""

BUDGET = 1 + 2 * 16
"""Where cells of an account begin that say of its budget, where hosts share it."""

KIND, UNIT, AMOUNT, PERIOD, OTHERS, SYNCED, LEASE, LEFT, WANTED, SAID, KEPT = range(11)
"""These cells: its period's kind (0: there is no budget), unit and amount. What the store has said: for which period,
what others have spent, what it then knew this host to have spent, how much more this host may spend, and how much
nobody has taken. Whether more is wanted, and when the store was asked for that (0: it has said nothing that still
counts). Behind these, what was kept from before this memory was made, as the copies are."""

ACCOUNTS = Kind(32768, floats=BUDGET + KEPT + 16, counters=3, text=264)
"""Two copies of what was used, and which of them counts; the budget; requests, tokens and money in flight. The text
holds any name of an account: ``header:`` and 64 characters of 4 bytes."""

KINDS = (METERS, ACCOUNTS)
