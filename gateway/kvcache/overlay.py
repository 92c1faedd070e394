"""Predictions: keys that a placement will put on an endpoint, believed for a few seconds.

Apart from what engines confirmed, so that a prediction that lapses never erases a fact. A burst of siblings (one long
prompt, many questions) so finds the endpoint of the first before that engine has announced a single block.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from gateway.framework import Clock


class Overlay:
    """``masks``: key -> a bit for each slot that is predicted to hold it."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self.masks: dict[int, int] = {}
        self._clock = clock
        self._seconds = seconds
        self._until: dict[tuple[int, int], float] = {}
        self._lapses: deque[tuple[float, int, list[int]]] = deque()

    def predict(self, slot: int, keys: Iterable[int]) -> None:
        until = self._clock.monotonic() + self._seconds
        bit = 1 << slot
        entered = list(keys)
        for key in entered:
            self.masks[key] = self.masks.get(key, 0) | bit
            self._until[key, slot] = until
        if entered:
            self._lapses.append((until, slot, entered))

    def confirmed(self, slot: int, key: int) -> None:
        """The engine has said so itself: from here on its word counts."""
        if self._until.pop((key, slot), None) is not None:
            self._clear(slot, key)

    def lapse(self) -> None:
        """Forget what has not come true in time. Cheap while nothing is due."""
        now = self._clock.monotonic()
        while self._lapses and self._lapses[0][0] <= now:
            _, slot, keys = self._lapses.popleft()
            for key in keys:
                until = self._until.get((key, slot))
                if until is not None and until <= now:
                    del self._until[key, slot]
                    self._clear(slot, key)

    def forget(self, slot: int) -> None:
        """Everything predicted of ``slot``."""
        for key, other in [pair for pair in self._until if pair[1] == slot]:
            del self._until[key, other]
            self._clear(slot, key)

    def _clear(self, slot: int, key: int) -> None:
        mask = self.masks.get(key, 0) & ~(1 << slot)
        if mask:
            self.masks[key] = mask
        else:
            self.masks.pop(key, None)
