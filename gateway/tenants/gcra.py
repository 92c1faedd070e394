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

MINUTE = 60.0

SLACK = 1e-6
"""Units by which a bucket may be overfull: who waits as long as was said must not be refused for a rounding error."""

RESOLUTION = 1024
"""Parts of a bucket by which least backlogs are told apart, so that no more of them are kept. What is given back may be
too small by one part."""


class Bucket:
    """At most ``limit`` units at once, refilled by ``limit`` units a minute. ``now``, in all methods, is
    Clock.monotonic() and never goes back."""

    __slots__ = ("_at", "_limit", "_lows", "_marks", "_rate", "_taken", "_used")

    def __init__(self, limit: int, now: float) -> None:
        self._limit = limit
        self._rate = limit / MINUTE
        self._at = now
        self._used = 0.0
        self._taken = 0
        # The least backlogs that an arrival has found since others: ascending in both, and ``_marks`` says which.
        self._marks: list[int] = []
        self._lows: list[float] = []

    @property
    def limit(self) -> int:
        return self._limit

    def become(self, limit: int, now: float) -> None:
        """Change the limit. What is used stays used."""
        self._drain(now)
        self._limit, self._rate = limit, limit / MINUTE

    def used(self, now: float) -> float:
        """Units that are taken and not refilled: 0 or more; above ``limit`` after more was needed than was taken."""
        self._drain(now)
        return self._used

    def wait(self, amount: float, now: float) -> float:
        """Seconds until ``amount`` may be taken; 0: now. No more than ``limit`` is ever waited for."""
        self._drain(now)
        over = self._used + min(amount, self._limit) - self._limit
        return over / self._rate if over > SLACK else 0.0

    def take(self, amount: float, now: float) -> int:
        """Take ``amount``, whether there is room or not. Returns a mark, for ``give_back``."""
        self._drain(now)
        self._taken += 1
        marks, lows, found = self._marks, self._lows, self._used
        while lows and lows[-1] >= found:
            lows.pop()
            marks.pop()
        if lows and found - lows[-1] < self._limit / RESOLUTION:
            marks[-1] = self._taken
        else:
            marks.append(self._taken)
            lows.append(found)
        self._used += amount
        return self._taken

    def give_back(self, mark: int, amount: float, now: float) -> None:
        """Of what was taken under ``mark``, ``amount`` was not needed. Once for each mark."""
        self._drain(now)
        marks, lows = self._marks, self._lows
        first = bisect_right(marks, mark)
        back = min(amount, self._used) if first == len(lows) else min(amount, self._used, lows[first])
        self._used -= back
        for later in range(first, len(lows)):
            lows[later] -= back
        if 0 < first < len(lows):
            kept = first
            while kept and lows[kept - 1] >= lows[first]:
                kept -= 1
            del marks[kept:first], lows[kept:first]

    def _drain(self, now: float) -> None:
        passed = now - self._at
        if passed > 0:
            self._at = now
            self._used = max(0.0, self._used - passed * self._rate)
