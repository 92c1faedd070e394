"""Predictions: keys that a placement will put on an endpoint, believed for a few seconds.

Apart from what engines confirmed, so that a prediction that lapses never erases a fact. A burst of siblings (one long
prompt, many questions) so finds the endpoint of the first before that engine has announced a single block.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from gateway.framework import Clock


class Overlay:
    """``masks``: key -> a bit for each place that is predicted to hold it (``1 << place``)."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self.masks: dict[int, int] = {}
        self._clock = clock
        self._seconds = seconds
        self._until: dict[int, dict[int, float]] = {}
        self._lapses: deque[tuple[float, int, Sequence[int]]] = deque()

    def predict(self, place: int, keys: Sequence[int]) -> None:
        """``place`` will hold ``keys`` (not changed by the caller afterwards); said again, they are believed longer."""
        if not keys:
            return
        until = self._clock.monotonic() + self._seconds
        self._until.setdefault(place, {}).update(dict.fromkeys(keys, until))
        masks, bit = self.masks, 1 << place
        for key in keys:
            masks[key] = masks.get(key, 0) | bit
        self._lapses.append((until, place, keys))

    def confirmed(self, place: int, keys: Iterable[int]) -> None:
        """The engine has said so itself, or it did not come true: from here on the engine's word counts."""
        until = self._until.get(place)
        if not until:
            return
        for key in keys:
            if until.pop(key, None) is not None:
                self._clear(place, key)

    def lapse(self) -> None:
        """Forget what has not come true in time. Cheap while nothing is due."""
        if not self._lapses:
            return
        now = self._clock.monotonic()
        while self._lapses and self._lapses[0][0] <= now:
            _, place, keys = self._lapses.popleft()
            until = self._until.get(place, {})
            for key in keys:
                if until.get(key, now + 1) <= now:
                    del until[key]
                    self._clear(place, key)

    def forget(self, place: int) -> None:
        """Everything predicted of ``place``."""
        for key in self._until.pop(place, ()):
            self._clear(place, key)

    def _clear(self, place: int, key: int) -> None:
        mask = self.masks[key] & ~(1 << place)
        if mask:
            self.masks[key] = mask
        else:
            del self.masks[key]
