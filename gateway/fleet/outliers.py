"""Outlier detection by the share of an engine's answers that break off, and a panic threshold (Envoy's terms).

Rules: the share counts and not failures in a row, since of a burst those that break off end first. If more than half
of the endpoints that could serve would be ejected, some are spared: it is more likely that the judgement is wrong than
that all of them fail, and the rest could not carry the load.

Pure: times are given.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from gateway.fleet.health import Health

WINDOW = 60.0
"""Seconds for which an answer counts: a quiet engine's five broken answers may be that far apart."""

LAST = 100
"""Answers that count at most: an engine that begins to break all of them is ejected after that many."""

BREAKS = 5
"""Broken answers that it takes at least: more than the attempts of one request that kills engines."""

SHARE = 0.5
"""Share of broken answers from which an engine is an outlier. One that fails all requests at once seems idle and would
attract every request; one that answers half of them is worth more in use than out of it."""


class OutlierDetector:
    """Over the last answers of one engine.

    ``ended``: when each of them ended (seconds, never less than before), and whether it broke off. Each answer adds
    itself; what it means is looked at when one breaks off.
    """

    def __init__(self) -> None:
        self.ended: deque[tuple[float, bool]] = deque(maxlen=LAST)

    def is_outlier(self, in_flight: int) -> bool:
        """Whether too many broke off. ``in_flight``: requests on the engine now; up to ``LAST`` of them count as good,
        since answers that break off end first."""
        ended = self.ended
        while ended and ended[0][0] < ended[-1][0] - WINDOW:
            ended.popleft()
        broken, answers = sum([broke for _, broke in ended]), len(ended) + min(in_flight, LAST)
        return broken >= BREAKS and broken >= SHARE * answers


def spared(groups: Iterable[Iterable[Health]]) -> set[Health]:
    """The ejected engines to use all the same. ``groups``: of engines that can replace each other.

    Of a group's engines that are up or ejected at most half stay ejected: those that have been so for the longest time.
    """
    found: set[Health] = set()
    for group in groups:
        usable = [health for health in group if health.up or health.ejected]
        out = sorted((health for health in usable if health.ejected), key=lambda health: health.since)
        found.update(out[len(usable) // 2 :])
    return found
