"""The load of clients that are none of ours, as an engine's scrapes show it."""

from __future__ import annotations

from math import inf

FADE_STEP = 1e-3
"""Half-lives within which foreign load stays as it is: it is read for every candidate, and a power is expensive."""


class Foreign:
    """The load of other clients, as one scrape showed it, and what is left of it by now.

    ``half_life``: seconds after the scrape when it counts half. ``requests``, ``kv_tokens``: the faded figures, which
    hold until ``until`` (Clock.monotonic()).
    """

    __slots__ = ("_at", "_kv", "_requests", "half_life", "kv_tokens", "requests", "until")

    def __init__(self, half_life: float) -> None:
        self.half_life = half_life
        self.requests = self.kv_tokens = 0.0
        self.until = inf
        self._requests = self._kv = self._at = 0.0

    def scraped(self, requests: float, kv_tokens: float, at: float) -> None:
        """A scrape that is complete at ``at`` has shown so much."""
        self._requests, self._kv, self._at, self.until = requests, kv_tokens, at, 0.0

    def fade(self, now: float) -> None:
        """Exact to a thousandth."""
        fade = 0.5 ** ((now - self._at) / self.half_life)
        self.requests, self.kv_tokens = self._requests * fade, self._kv * fade
        self.until = now + FADE_STEP * self.half_life if self._requests or self._kv else inf
