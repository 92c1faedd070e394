"""Of an engine's answers, the share that broke off: when it is an outlier, and how many outliers may be out at a time.

Rules, in Envoy's words: outlier detection by share, not by a row, since what breaks in a burst comes before what ends
well; and a panic threshold: where more than half of the endpoints that could serve would be out, it is more likely that
the judgement is wrong than that all of them are, and the rest could not carry the load.

Pure: times are given.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from gateway.fleet.health import Health

WINDOW = 60.0
"""Seconds for which an answer counts: so long a quiet engine's five broken answers may be apart."""

LAST = 100
"""Answers that count at most: an engine that begins to break all of them is out after as many at the latest."""

BREAKS = 5
"""Broken answers below which there is no share. More than the attempts of one request that kills engines."""

SHARE = 0.5
"""Of its answers, that must have broken off: an engine that fails all at once seems idle and attracts every request.
One that answers half of them is worth more in use than out of it."""


class Answers:
    """The last answers of one engine."""

    def __init__(self) -> None:
        self._ended: deque[tuple[float, bool]] = deque()
        self._broken = 0

    def ended(self, now: float, *, broken: bool) -> None:
        """An answer has ended at ``now`` (seconds, never less than before)."""
        self._ended.append((now, broken))
        self._broken += broken
        while len(self._ended) > LAST or self._ended[0][0] < now - WINDOW:
            self._broken -= self._ended.popleft()[1]

    def outlier(self, under_way: int) -> bool:
        """Whether too many broke off, as of the last that ended. ``under_way``: requests that the engine has now; up to
        ``LAST`` of them count as good, since what breaks is heard of first."""
        all_of_them = len(self._ended) + min(under_way, LAST)
        return self._broken >= BREAKS and self._broken >= SHARE * all_of_them

    def clear(self) -> None:
        self._ended.clear()
        self._broken = 0


def spared(groups: Iterable[Iterable[Health]]) -> set[Health]:
    """The engines that are to be used although they are ejected. ``groups``: engines that could do the same.

    Of those in a group that are up or ejected at most half stay out, those that are out for the longest time.
    """
    found: set[Health] = set()
    for group in groups:
        usable = [health for health in group if health.up or health.ejected]
        out = sorted((health for health in usable if health.ejected), key=lambda health: health.since)
        found.update(out[len(usable) // 2 :])
    return found
