"""A rate limit by the generic cell rate algorithm, in its form as a continuous-state leaky bucket.

Source: ITU-T Recommendation I.371 (03/2004), annex A, and ATM Forum Traffic Management 4.1, section 4.4.2, which prove
that it is the same as virtual scheduling by a theoretical arrival time (TAT). In their words the increment is one unit,
the rate is ``limit`` units a minute, and the tolerance is one minute::

    used(t) = max(0, used(t0) - (t - t0) * limit / 60)          n units conform  <=>  used(t) + n <= limit
    TAT(t)  = t + (used(t) - limit) * 60 / limit                used >= 0        <=>  TAT >= t - one minute

So in any window of W seconds no more than ``limit * W / 60 + limit`` units conform. Nothing is counted in fixed
windows, at whose border twice the limit would pass.

What is not in the source is giving back. A request takes what it may need, and at its end gives back what it did not
need. The bucket is then as if it had taken the true amount at first: this follows from Lindley's recursion, in which an
arrival that is smaller by x leaves a backlog that is smaller by ``min(x, least backlog found by any arrival since)``.
Giving back more would allow more than the limit: in an idle time the bucket would have lost the difference anyhow.
"""

from __future__ import annotations

from bisect import bisect_right

from gateway.tenants.places import Cells

MINUTE = 60.0

SLACK = 1e-6
"""Units by which a bucket may be overfull: who waits as long as was said must not be refused for a rounding error."""

RESOLUTION = 64
"""Parts of a bucket by which least backlogs are told apart where there are many. What is given back may then be too
small by one part, and that only where less than this was in use at some time since: an almost empty bucket, of which
nobody is refused."""

MOST = RESOLUTION + 1
"""Least backlogs that are kept: they have a fixed place in memory that workers share. If there are more, those within
one part count as the lowest of them, which gives back less and never more."""

AT, USED, PART, TAKEN, COUNT, MARKS = range(6)
LOWS = MARKS + MOST
CELLS = LOWS + MOST
"""The cells of a bucket. ``AT``: when ``USED`` was right. ``PART``: units that it holds. ``TAKEN``: how often something
was taken, which gives the marks. ``COUNT`` least backlogs that an arrival has found since others: ascending in
``MARKS`` and ``LOWS``, and the former says since which. All 0: nothing was taken yet.

They are written in such an order that what is left of a change that breaks off (a worker is killed) is stricter than
the whole. Least backlogs that are just replaced are the exception: for a minute too much may be given back then."""


class Bucket:
    """At most ``limit`` units at once, refilled by ``limit`` units a minute; so much less where others have a part of
    it. ``now``, in all methods, is Clock.monotonic() and goes back by no more than the microseconds between two
    workers, which count as none. ``cells``: where its state is, ``CELLS`` of them; None: in itself.

    If parts of the limit move between buckets, and each gives away only what is not in use, all of them together let
    through what one bucket of the whole limit would, and no more.
    """

    __slots__ = ("cells", "elsewhere", "even", "limit")

    def __init__(self, limit: int, now: float, cells: Cells | None = None) -> None:
        self.cells: Cells = [0.0] * CELLS if cells is None else cells
        self.even = 0.0
        """Units that are this bucket's if all who have a part want more."""
        self.elsewhere = 0.0
        """Units of the limit that are in use elsewhere, as far as we know: only for who asks."""
        self.become(limit, now)

    def become(self, limit: int, now: float) -> None:
        """Change the limit, all of which is here. What is used stays used."""
        self.limit = limit
        self.hold(limit, now)

    def hold(self, part: float, now: float) -> None:
        """So much of the limit is here now; 0 or more."""
        hold(self.cells, part, now)

    def used(self, now: float) -> float:
        """Units that are taken and not refilled: 0 or more; above ``limit`` after more was needed than was taken."""
        return drain(self.cells, now)

    def shown(self, now: float) -> float:
        """Units of the whole limit that are in use, here and elsewhere."""
        return drain(self.cells, now) + self.elsewhere

    def wait(self, amount: float, now: float) -> float:
        """Seconds until ``amount`` may be taken; 0: now. No more than what the bucket holds is ever waited for, or than
        it will hold if it wants it."""
        part = self.cells[PART]
        over = drain(self.cells, now) + min(amount, max(part, self.even)) - part
        if part < SLACK:  # another one has all of it
            return MINUTE / self.limit
        return over * MINUTE / part if over > SLACK else 0.0

    def take(self, amount: float, now: float) -> int:
        """Take ``amount``, whether there is room or not. Returns a mark, for ``give_back``."""
        found, cells = drain(self.cells, now), self.cells
        taken = int(cells[TAKEN]) + 1
        cells[TAKEN] = taken
        cells[USED] = found + amount
        count = before = int(cells[COUNT])
        while count and cells[LOWS + count - 1] >= found:
            count -= 1
        if count == MOST:
            count = self._gather()
        if count == MOST:  # debts: a bucket that is more than full has more parts
            cells[MARKS + count - 1] = taken
        else:
            cells[LOWS + count] = found
            cells[MARKS + count] = taken
            count += 1
        if count != before:
            cells[COUNT] = count
        return taken

    def give_back(self, mark: int, amount: float, now: float) -> None:
        """Of what was taken under ``mark``, ``amount`` was not needed. Once for each mark."""
        used, cells = drain(self.cells, now), self.cells
        count = int(cells[COUNT])
        first = bisect_right(cells, mark, MARKS, MARKS + count) - MARKS
        back = min(amount, used)
        if first < count:
            back = min(back, cells[LOWS + first])
            for later in range(LOWS + first, LOWS + count):
                cells[later] -= back
            kept = first
            while kept and cells[LOWS + kept - 1] >= cells[LOWS + first]:
                kept -= 1
            if kept < first:
                for later in range(first, count):
                    cells[LOWS + kept + later - first] = cells[LOWS + later]
                    cells[MARKS + kept + later - first] = cells[MARKS + later]
                cells[COUNT] = count - (first - kept)
        cells[USED] = used - back

    def _gather(self) -> int:
        """Make one of the least backlogs that are within a part of the bucket. Returns how many are left."""
        cells, part, kept = self.cells, self.cells[PART] / RESOLUTION, 0
        for at in range(1, MOST):
            if cells[LOWS + at] - cells[LOWS + kept] >= part:
                kept += 1
                cells[LOWS + kept] = cells[LOWS + at]
            cells[MARKS + kept] = cells[MARKS + at]
        return kept + 1


def drain(cells: Cells, now: float) -> float:
    """What is used at ``now`` of the bucket in these cells."""
    used, passed = cells[USED], now - cells[AT]
    if passed > 0:
        cells[AT] = now
        if used:
            cells[USED] = used = max(0.0, used - passed * cells[PART] / MINUTE)
    return used


def hold(cells: Cells, part: float, now: float) -> None:
    """The bucket in these cells has so many units from now on."""
    if cells[PART] != part:
        drain(cells, now)
        cells[PART] = part


def is_empty(cells: Cells, now: float) -> bool:
    """Whether the bucket in these cells would be the same if it were made anew."""
    return cells[USED] <= (now - cells[AT]) * cells[PART] / MINUTE
