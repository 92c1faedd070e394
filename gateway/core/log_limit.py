"""Log lines that a peer can cause without end: some a minute for each key, with a count of those left out."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.framework.clock import Clock

PERIOD = 60.0
"""Seconds: an operator sees within a minute that it goes on, and a day of it is 1,440 lines."""

MAX_KEYS = 1_000
"""The most keys with a count of their own, 200 bytes each: more than the endpoints of a large fleet. All others share
one count."""


@dataclass(slots=True)
class _Key:
    """``since``: when its minute began. ``left_out``: lines since the last one that was written."""

    since: float
    written: int = 0
    left_out: int = 0


class LogLimit:
    """Admits ``most`` lines of each key in a minute. Metrics are where all of them are counted."""

    def __init__(self, clock: Clock, *, most: int = 1) -> None:
        self._clock = clock
        self._most = most
        self._keys: dict[tuple[str, ...], _Key] = {}
        self._swept = clock.monotonic()

    def admit(self, *key: str) -> int | None:
        """How many lines of ``key`` were left out since the last one that was written; None: leave this one out too."""
        now = self._clock.monotonic()
        state = self._keys.get(key)
        if state is None:
            state = self._add(key, now)
        if now - state.since >= PERIOD:
            state.since, state.written = now, 0
        if state.written >= self._most:
            state.left_out += 1
            return None
        state.written += 1
        left_out, state.left_out = state.left_out, 0
        return left_out

    def __len__(self) -> int:
        return len(self._keys)

    def _add(self, key: tuple[str, ...], now: float) -> _Key:
        if len(self._keys) >= MAX_KEYS and now - self._swept >= PERIOD:
            self._swept = now
            for old in [old for old, state in self._keys.items() if now - state.since >= PERIOD]:
                del self._keys[old]
        if len(self._keys) >= MAX_KEYS:
            key = ()
        return self._keys.setdefault(key, _Key(now))


def left_out(count: int) -> str:
    """The end of a line, where ``count`` like it were left out before it."""
    return f" ({count} more like it since the last line)" if count else ""
