"""Whether requests may be sent to an engine: a pure state machine.

Rules: an engine starts down (``not-probed``) and is up from its first good answer. While it is up, ``failures`` failed
scrapes in a row take it down; a refused connection, or its own report that it cannot serve, does so at once. While it
is down it is tried again after a pause that doubles, with jitter, so that many gateways do not try in step. An engine
that comes *back* gets its full share over ``slow_start`` seconds; one that is up for the first time gets it at once. A
return that is shorter than ``slow_start`` does not reset the doubling: an engine that flaps is tried less often.

An engine that is down for any other reason than a failed connection or its own report is *ejected*: our judgement may
be wrong. An engine is an outlier by the share of its last answers that broke off (Envoy's term). The share counts and
not failures in a row, since of a burst those that break off end first. If more than half of a model's endpoints would
be ejected, some are spared: it is more likely that the judgement is wrong than that all of them fail, and the rest
could not carry the load.

A reason is a short word for a metric's label. It is empty if and only if the engine is up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from random import Random
from typing import NamedTuple

from gateway.fleet.settings import HealthSettings
from gateway.framework import Clock

AT_ONCE = frozenset({"refused", "unhealthy"})
"""Reasons that take an engine down at once: no process listens, or the engine reports that it is dead."""

CERTAIN = AT_ONCE | {"asleep", "connect", "dns", "tls"}
"""Reasons that are certain, and not our judgement: nothing could be sent, or the engine reports that it does not
serve."""

COLDEST = 0.1
"""Warmth at the moment of coming back. Not 0, so that a scorer may divide by it; Envoy's slow start begins at the same
tenth of the weight."""

MOST_BACKOFFS = 30
"""The longest pause, as a multiple of the first: 15 s by default, by which an engine's restart is hardly longer."""

JITTER = 0.5
"""A pause is a random value between this fraction of the full pause and the full pause."""


class HealthState(NamedTuple):
    """A ``Health`` as one worker tells it to another: all but its failures in a row, which only the one that probes
    counts. Times are Clock.monotonic(), which a host's processes share."""

    up: bool
    reason: str
    since: float
    certain: bool
    was_up: bool
    resting: bool
    downs: int
    warming_from: float | None


class Health:
    """Every ``record_`` method returns whether ``up`` or ``reason`` changed."""

    def __init__(self, settings: HealthSettings, clock: Clock, random: Random) -> None:
        self.up = False
        self.reason = "not-probed"
        self._settings = settings
        self._clock = clock
        self._random = random
        self._failures = 0
        self._downs = 0
        self._was_up = False
        self._changed_at = clock.monotonic()
        self._warming_from: float | None = None
        self._resting = False
        self._certain = True

    @property
    def ejected(self) -> bool:
        """Whether it was up and is now down by our judgement. False after a certain reason, until it is up again."""
        return not self.up and not self._certain

    @property
    def since(self) -> float:
        """Clock.monotonic() when it last went up or down."""
        return self._changed_at

    def record_success(self, asked: float) -> bool:
        """A probe that was sent at ``asked`` (Clock.monotonic()) was answered.

        Ignored if the engine went down after ``asked``: the answer is older than that.
        """
        now = self._clock.monotonic()
        if not self.up and self._was_up and asked < self._changed_at:
            return False
        self._failures = 0
        if self.up:
            if now - self._changed_at >= self._settings.slow_start:
                self._downs = 0
            return False
        self._warming_from = now if self._was_up else None
        self._was_up = True
        self._resting = False
        self.up = True
        self.reason = ""
        self._changed_at = now
        return True

    def record_failure(self, reason: str) -> bool:
        """A probe failed. ``reason``: how."""
        self._failures += 1
        if self.up:
            if reason not in AT_ONCE and self._failures < self._settings.failures:
                return False
            return self._mark_down(reason)
        self._downs += 1
        return self._set_reason(reason)

    def record_refused(self) -> bool:
        """A request's connection was refused. Changes nothing while the engine is down for a certain reason."""
        if self.up:
            return self._mark_down("refused")
        return self._set_reason("refused") if self.ejected else False

    def record_broken(self) -> bool:
        """Too many of its answers break off, although it can be scraped."""
        return self._mark_down("broken-answers") if self.up else False

    def record_unavailable(self, reason: str) -> bool:
        """The engine answers and reports that it does not serve now (``asleep``). It is probed at every interval."""
        changed = self._mark_down(reason) if self.up else self._set_reason(reason)
        self._resting = True
        self._downs = 0
        self._failures = 0
        return changed

    def state(self) -> HealthState:
        """For another worker."""
        return HealthState(
            *(self.up, self.reason, self._changed_at, self._certain),
            *(self._was_up, self._resting, self._downs, self._warming_from),
        )

    def adopt(self, state: HealthState, asked: float) -> bool:
        """Be what another worker has found, by a question that began at ``asked``.

        As with an answer of our own, ``up`` is ignored if the engine went down here after ``asked``.
        """
        if state.up and not self.up and self._was_up and asked < self._changed_at:
            return False
        changed = (self.up, self.reason) != (state.up, state.reason)
        self.up, self.reason, self._changed_at, self._certain = state[:4]
        self._was_up, self._resting, self._downs, self._warming_from = state[4:]
        self._failures = 0
        return changed

    def pause(self, interval: float) -> float:
        """Seconds until the next probe. A healthy engine is probed every ``interval`` seconds."""
        if self.up or self._resting:
            return interval
        # The most is reached long before 2^32; a larger exponent would overflow a float.
        doubled = min(MOST_BACKOFFS, 2.0 ** min(32, max(0, self._downs - 1)))
        return self._settings.backoff * doubled * (JITTER + (1 - JITTER) * self._random.random())

    def warmth(self) -> float:
        """Its share of requests during slow start: 0.1..1."""
        if self._warming_from is None or not self.up:
            return 1.0
        elapsed = self._clock.monotonic() - self._warming_from
        if elapsed >= self._settings.slow_start:
            self._warming_from = None
            return 1.0
        return max(COLDEST, elapsed / self._settings.slow_start)

    def skip_slow_start(self) -> None:
        """Give it its full share at once: it was spared, and so in use while it was down."""
        self._warming_from = None

    def _mark_down(self, reason: str) -> bool:
        self.up = False
        self.reason = reason
        self._certain = reason in CERTAIN
        self._changed_at = self._clock.monotonic()
        self._failures = 0
        self._resting = False
        self._downs += 1
        return True

    def _set_reason(self, reason: str) -> bool:
        changed = self.reason != reason
        self.reason = reason
        self._certain = self._certain or reason in CERTAIN
        self._resting = False
        return changed


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
