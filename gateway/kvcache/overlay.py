"""Predictions: what a request will have put on its endpoint, believed while its prompt is under way there.

Kept apart from what engines confirmed, so that a prediction that ends never erases a fact. A burst of siblings (one
long prompt, many questions) finds the endpoint of the first before that engine has announced a single block, and the
next turn of a conversation finds the endpoint where the last one still waits.

A prediction lasts as long as the work that it predicts: until the prompt is computed, however long that waits in the
engine's queue, and then for as long as the engine's events may take. A time of its own would be wrong either way: with
10 s, engines whose queues were longer lost their sessions, which scattered, and made the queues longer still.

All blocks of the prompt are predicted, those that the engine holds already too: if it evicts them while the request
waits, the request computes them anew. Once the prompt is computed, only those are that no event has told of yet.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from gateway.framework import Clock
from gateway.kvcache.layers import Layer
from gateway.kvcache.shelf import ALL, Shelf, Stretch

EVENTS_WITHIN = 5.0
"""Seconds from a prompt's first token in which its events must have come. They leave the engine with the step that
computes the prompt, and are looked at some times a second; a busy machine may hold either up."""

LAPSE = 1000
"""Stretches whose predictions one call lets lapse: half a millisecond, and more than one prompt has."""


class Prediction:
    """Of one request on one endpoint. Every method may be called in any order, and more than once.

    ``marks``: stretch -> bits of the blocks that are still predicted. ``announced``: the prompt is computed, and the
    rest is waiting for its events.
    """

    __slots__ = ("_at", "_claims", "_overlay", "_place", "announced", "marks")

    def __init__(self, overlay: Overlay, place: int, claims: Claims, marks: dict[Stretch, int], at: float) -> None:
        self.marks = marks
        self.announced = False
        self._overlay = overlay
        self._place = place
        self._claims = claims
        self._at = at

    def computed(self) -> None:
        """The prompt is computed: the engine's events of it have come, or will within ``EVENTS_WITHIN``."""
        self._overlay._computed(self)

    def withdraw(self) -> None:
        """It will not come true, or has: from here on the engine's word counts."""
        self._overlay._end(self)


Claims: TypeAlias = dict[Stretch, dict[Prediction, int]]
"""Who predicts what of a stretch, as bits."""


class Overlay:
    """Predictions of all endpoints, on the shelf in each one's place of its own. ``place``: an endpoint's.

    ``longest``: seconds for which a prompt may be under way; after that its prediction ends as one that was withdrawn.
    """

    def __init__(self, shelf: Shelf, clock: Clock, longest: float) -> None:
        self._shelf = shelf
        self._clock = clock
        self._longest = longest
        self._claims: dict[int, Claims] = {}
        # Those whose prompts are under way, and those whose events are; the earliest first.
        self._under_way: OrderedDict[Prediction, None] = OrderedDict()
        self._announced: OrderedDict[Prediction, None] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._under_way or self._announced)

    def predict(self, place: int, keys: Sequence[int], now: int) -> Prediction:
        """The endpoint will hold ``keys``.

        ``now``: in the index's count of placements: all of the prompt's stretches are used at that time.
        """
        shelf, predicted = self._shelf, place + Layer.PREDICTED
        claims = self._claims.setdefault(place, {})
        marks: dict[Stretch, int] = {}
        prediction = Prediction(self, place, claims, marks, self._clock.monotonic())
        for stretch, offset, count in shelf.enter(-1, keys):
            stretch.used = now
            bits = ALL[count] << offset
            if not stretch.full >> predicted & 1:
                shelf.mark(stretch, predicted, bits)
            marks[stretch] = bits = marks.get(stretch, 0) | bits
            claimed = claims.get(stretch)
            if claimed is None:
                claims[stretch] = {prediction: bits}
            else:
                claimed[prediction] = bits
        self._under_way[prediction] = None
        return prediction

    def confirmed(self, place: int, stretch: Stretch, bits: int) -> None:
        """The engine has told of these blocks. Requests whose prompts are under way are still sure of them, whatever
        the engine evicts meanwhile; those whose prompts are computed are not."""
        claims = self._claims.get(place)
        claimed = claims.get(stretch) if claims else None
        if claims is None or claimed is None:
            return
        told = 0
        for prediction, marked in list(claimed.items()):
            if not (prediction.announced and marked & bits):
                continue
            told |= marked & bits
            if left := marked & ~bits:
                claimed[prediction] = prediction.marks[stretch] = left
                continue
            del claimed[prediction], prediction.marks[stretch]
            if not prediction.marks:
                self._announced.pop(prediction, None)
        self._unmark(claims, place, stretch, told)

    def lapse(self) -> None:
        """Forget what has not come true in time. Cheap while nothing is due."""
        if not (self._under_way or self._announced):
            return
        now, work = self._clock.monotonic(), 0
        for predictions, seconds in ((self._announced, EVENTS_WITHIN), (self._under_way, self._longest)):
            while predictions and work < LAPSE and (oldest := next(iter(predictions)))._at + seconds <= now:
                work += len(oldest.marks)
                self._end(oldest)

    def leave(self, place: int) -> Iterator[None]:
        """Take everything predicted of an endpoint off the shelf, in steps of one stretch each."""
        claims = self._claims.get(place, {})
        while claims:  # it may change between two steps
            stretch, claimed = claims.popitem()
            for prediction in claimed:
                prediction.marks.pop(stretch, None)
            self._shelf.leave(stretch, place + Layer.PREDICTED)
            yield
        # What was predicted before has these claims, and not those of whoever gets the place next.
        self._claims.pop(place, None)

    def _computed(self, prediction: Prediction) -> None:
        if prediction not in self._under_way:
            return
        del self._under_way[prediction]
        prediction.announced = True
        for stretch, bits in list(prediction.marks.items()):
            if held := bits & stretch.held(prediction._place):
                self._drop(prediction, stretch, held)
        if prediction.marks:
            prediction._at = self._clock.monotonic()
            self._announced[prediction] = None

    def _end(self, prediction: Prediction) -> None:
        self._under_way.pop(prediction, None)
        self._announced.pop(prediction, None)
        for stretch, bits in list(prediction.marks.items()):
            self._drop(prediction, stretch, bits)

    def _drop(self, prediction: Prediction, stretch: Stretch, bits: int) -> None:
        """These blocks are not predicted by it any more."""
        claimed = prediction._claims[stretch]
        if left := prediction.marks[stretch] & ~bits:
            prediction.marks[stretch] = claimed[prediction] = left
        else:
            del prediction.marks[stretch], claimed[prediction]
        self._unmark(prediction._claims, prediction._place, stretch, bits)

    def _unmark(self, claims: Claims, place: int, stretch: Stretch, bits: int) -> None:
        """Take off the shelf those of ``bits`` that nobody predicts any more."""
        claimed = claims[stretch]
        for others in claimed.values():
            bits &= ~others
            if not bits:
                return
        if not claimed:
            del claims[stretch]
        if bits:
            self._shelf.unmark(stretch, place + Layer.PREDICTED, bits)
