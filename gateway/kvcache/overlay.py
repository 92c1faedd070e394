"""Predictions: what a placement will put on an endpoint, believed for a few seconds.

Apart from what engines confirmed, so that a prediction that lapses never erases a fact. A burst of siblings (one long
prompt, many questions) so finds the endpoint of the first before that engine has announced a single block.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from gateway.framework import Clock
from gateway.kvcache.layers import Layer
from gateway.kvcache.shelf import ALL, Shelf, Stretch

LAPSE = 1000
"""Stretches whose predictions one call lets lapse: half a millisecond, and more than one prompt has."""


class Overlay:
    """Predictions of all endpoints, on the shelf in each one's place of its own. ``place``: an endpoint's."""

    def __init__(self, shelf: Shelf, clock: Clock, seconds: float) -> None:
        self._shelf = shelf
        self._clock = clock
        self._seconds = seconds
        # Place -> stretch -> until when, and which blocks; what has lapsed of it is dropped with the next that lapses.
        self._until: dict[int, dict[Stretch, list[tuple[float, int]]]] = {}
        self._lapses: deque[tuple[float, int, list[Stretch]]] = deque()

    def __bool__(self) -> bool:
        return bool(self._lapses)

    def predict(self, place: int, keys: Sequence[int], now: int) -> None:
        """The endpoint will hold ``keys``; said again, they are believed longer.

        ``now``: in the index's count of placements: all of the prompt's stretches are used at that time.
        """
        until = self._clock.monotonic() + self._seconds
        shelf = self._shelf
        new: list[Stretch] = []
        known = self._until.setdefault(place, {})
        for stretch, offset, count in shelf.enter(-1, keys):
            stretch.used = now
            if stretch.full >> place & 1:
                continue
            bits, part = ALL[count] << offset, stretch.part
            if part:
                bits &= ~part.get(place, 0)
            if bits:
                shelf.mark(stretch, place + Layer.PREDICTED, bits)
                known.setdefault(stretch, []).append((until, bits))
                new.append(stretch)
        if new:
            self._lapses.append((until, place, new))

    def withdraw(self, place: int, stretch: Stretch, bits: int) -> None:
        """It did not come true: from here on the engine's word counts."""
        self._shelf.unmark(stretch, place + Layer.PREDICTED, bits)

    def lapse(self) -> None:
        """Forget what has not come true in time. Cheap while nothing is due."""
        if not self._lapses or self._lapses[0][0] > (now := self._clock.monotonic()):
            return
        work = 0
        while self._lapses and self._lapses[0][0] <= now and work < LAPSE:
            _, place, stretches = self._lapses.popleft()
            known = self._until.get(place, {})
            work += len(stretches)
            for stretch in stretches:
                gone = still = 0
                left = []
                for until, bits in known.pop(stretch, ()):
                    if until <= now:
                        gone |= bits
                    else:
                        still |= bits
                        left.append((until, bits))
                if left:
                    known[stretch] = left
                if gone & ~still:
                    self._shelf.unmark(stretch, place + Layer.PREDICTED, gone & ~still)

    def leave(self, place: int) -> Iterator[None]:
        """Take everything predicted of an endpoint off the shelf, in steps of one stretch each."""
        known = self._until.get(place, {})
        while known:  # it may change between two steps
            stretch, _ = known.popitem()
            self._shelf.leave(stretch, place + Layer.PREDICTED)
            yield
        self._until.pop(place, None)
