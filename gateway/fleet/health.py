"""Whether an engine may be sent to: a pure state machine.

Rules: an engine begins down (``not-probed``) and is up from its first good answer. While up, ``failures`` failed
scrapes in a row take it out; a refused connection, or its own word that it cannot serve, does so at once. While down it
is tried again after a pause that doubles, with jitter, so that many gateways do not return in step. An engine that came
*back* is brought to its full share over ``slow_start`` seconds; one that is up for the first time has it at once. A
return that did not last ``slow_start`` does not reset the doubling: an engine that flaps is tried less and less often.

An engine that went out by anything but a connection that cannot be made or its own word is *ejected*: we may be wrong,
and of a model's endpoints no more than half stay out for that (``outliers.spared``).

A reason is a short word for a metric's label; it is empty if and only if the engine is up.
"""

from __future__ import annotations

from random import Random

from gateway.fleet.settings import HealthSettings
from gateway.framework import Clock

AT_ONCE = frozenset({"refused", "unhealthy"})
"""Reasons that need no second failure: nobody listens, or the engine itself says that it is dead."""

CERTAIN = AT_ONCE | {"asleep", "connect", "dns", "tls"}
"""Reasons for which nothing could be sent there, or it says itself that it would not serve it."""

COLDEST = 0.1
"""Warmth at the moment of coming back. Not 0, so that a scorer may divide by it; Envoy's slow start begins at the same
tenth of the weight."""

JITTER = 0.5
"""A pause is drawn from this fraction of it up to the whole."""


class Health:
    """Every method that takes news says whether ``up`` or ``reason`` changed."""

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
        """It was up, and is out for what may be our mistake. Once it was certain, that stays so until it is up."""
        return not self.up and not self._certain

    @property
    def since(self) -> float:
        """When it went up or down, of Clock.monotonic()."""
        return self._changed_at

    def succeeded(self, asked: float) -> bool:
        """The engine answered well to a question put at ``asked`` (Clock.monotonic()).

        An answer to a question from before it went down says nothing about now, and is ignored.
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

    def failed(self, reason: str) -> bool:
        """A try failed: ``reason`` says how."""
        self._failures += 1
        if self.up:
            if reason not in AT_ONCE and self._failures < self._settings.failures:
                return False
            return self._take_out(reason)
        self._downs += 1
        return self._rename(reason)

    def refused(self) -> bool:
        """A request's connection was refused. While down for certain it tells nothing new."""
        if self.up:
            return self._take_out("refused")
        return self._rename("refused") if self.ejected else False

    def broken(self) -> bool:
        """Its answers keep breaking off although it can be scraped."""
        return self._take_out("broken-answers") if self.up else False

    def resting(self, reason: str) -> bool:
        """The engine answers, and says that it does not serve now (``asleep``): looked at again at every interval."""
        changed = self._take_out(reason) if self.up else self._rename(reason)
        self._resting = True
        self._downs = 0
        self._failures = 0
        return changed

    def pause(self, interval: float) -> float:
        """Seconds until the next try, where a healthy engine is asked every ``interval`` seconds."""
        if self.up or self._resting:
            return interval
        # Beyond 2^32 the bound has been reached long ago; the exponent must not grow into a float's overflow.
        doubled = self._settings.backoff * 2.0 ** min(32, max(0, self._downs - 1))
        return min(self._settings.max_backoff, doubled) * (JITTER + (1 - JITTER) * self._random.random())

    def warmth(self) -> float:
        """The share it may have: 0.1..1."""
        if self._warming_from is None or not self.up:
            return 1.0
        elapsed = self._clock.monotonic() - self._warming_from
        if elapsed >= self._settings.slow_start:
            self._warming_from = None
            return 1.0
        return max(COLDEST, elapsed / self._settings.slow_start)

    def warm(self) -> None:
        """It was in use all the while: it needs no slow start."""
        self._warming_from = None

    def _take_out(self, reason: str) -> bool:
        self.up = False
        self.reason = reason
        self._certain = reason in CERTAIN
        self._changed_at = self._clock.monotonic()
        self._failures = 0
        self._resting = False
        self._downs += 1
        return True

    def _rename(self, reason: str) -> bool:
        changed = self.reason != reason
        self.reason = reason
        self._certain = self._certain or reason in CERTAIN
        self._resting = False
        return changed
