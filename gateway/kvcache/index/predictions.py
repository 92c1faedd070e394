"""Predictions: the blocks that a request will have put on its endpoint, believed while its prompt is under way there.

In a column of their own, so that a prediction that ends never erases a fact. A burst of requests with one long prefix
finds the endpoint of the first before that engine has announced a single block, and the next turn of a conversation
finds the endpoint where the last one still waits.

A prediction lasts as long as the work that it predicts: until the prompt is computed, however long that waits in the
engine's queue, and then for as long as the engine's events may take. A fixed time would be wrong either way: with 10 s,
engines whose queues were longer lost their sessions, which scattered, and made the queues longer still.

What the engine holds already needs no prediction. If it evicts some of that while the request waits, the request will
compute it again: then that is predicted, too.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import TypeAlias

from gateway.framework import Clock
from gateway.kvcache.index.block_table import LEADING, BlockChunk, BlockTable
from gateway.kvcache.index.layers import PREDICTED

EVENTS_WITHIN = 5.0
"""Seconds from a prompt's first token in which its events must have come. They leave the engine with the step that
computes the prompt, and are polled some times a second; a busy machine may delay either."""

COMPUTED_WITHIN = 300.0
"""Seconds for which a prompt may be under way: the default of ``timeouts.head``. Its first token, or its request's end,
comes before, unless an engine loses it; then its prediction is withdrawn."""

LOOK_EVERY = 0.25
"""Seconds between two looks at what has lapsed: many together cost a fifth of what one costs beside each request."""

EXPIRE_LIMIT = 1000
"""Chunks whose predictions one call lets expire: half a millisecond, and more than one prompt has."""


class Prediction:
    """Of one request on one endpoint.

    ``blocks``: chunk -> bits of the prompt's blocks, in order. ``marks``: the same of those that are predicted;
    ``claims``: the same of all requests on the endpoint. ``column``: the endpoint's first. ``announced``: the prompt is
    computed, and the rest waits for its events. ``at``: Clock.monotonic() when that was so, or when it was placed.
    ``then``: called once when the engine has reported all of ``marks``; None: nobody asks.
    """

    __slots__ = ("announced", "at", "blocks", "claims", "column", "marks", "owner", "then")

    def __init__(self, owner: Predictions, column: int, claims: Claims, at: float) -> None:
        self.owner = owner
        self.column = column
        self.claims = claims
        self.blocks: dict[BlockChunk, int] = {}
        self.marks: dict[BlockChunk, int] = {}
        self.announced = False
        self.at = at
        self.then: Callable[[], None] | None = None


Claims: TypeAlias = dict[BlockChunk, dict[Prediction, int]]
"""Chunk -> which predictions claim blocks of it, as bits."""

Users: TypeAlias = Prediction | dict[Prediction, None]
"""Whose prompts have blocks of a chunk: mostly one."""


class Predictions:
    """All predictions of a model's endpoints. ``column``: an endpoint's first. ``computed`` and ``withdraw`` may be
    called in any order, and more than once. ``due_at``: Clock.monotonic() from which ``expire`` is to be called.
    """

    def __init__(self, table: BlockTable, clock: Clock) -> None:
        self._table = table
        self._clock = clock
        self._claims: dict[int, Claims] = {}
        # Those whose prompts are under way, and those whose events are expected; the earliest first.
        self._under_way: OrderedDict[Prediction, None] = OrderedDict()
        self._announced: OrderedDict[Prediction, None] = OrderedDict()
        self.due_at = inf
        self._look_at = 0.0

    def predict(self, column: int, keys: Sequence[int], now: int, *, gpu: bool = True) -> Prediction:
        """The endpoint will hold ``keys``.

        ``now``: in the index's count of placements: all chunks of the prompt are used at that time. ``gpu``: what its
        GPU column holds is there; false while that is cleared.
        """
        claims = self._claims.get(column)
        if claims is None:
            claims = self._claims[column] = {}
        prediction = Prediction(self, column, claims, self._clock.monotonic())
        blocks = prediction.blocks
        for chunk, offset, count in self._table.insert(-1, keys, column + PREDICTED):
            chunk.used = now
            bits = LEADING[count] << offset
            blocks[chunk] = blocks.get(chunk, 0) | bits
            if not gpu or not chunk.full >> column & 1:
                if gpu and chunk.part:
                    bits &= ~chunk.part.get(column, 0)
                if bits:
                    self._claim(prediction, chunk, bits)
        self._under_way[prediction] = None
        self._due(prediction.at + COMPUTED_WITHIN)
        return prediction

    def confirmed(self, column: int, chunk: BlockChunk, bits: int) -> None:
        """The engine has reported these blocks."""
        claims = self._claims.get(column)
        claimed = claims.get(chunk) if claims else None
        if claimed is None:
            return
        for prediction, marked in list(claimed.items()):
            if marked & bits:
                self._drop(prediction, chunk, marked & bits)
                if prediction.marks:
                    continue
                if prediction.announced:
                    self._announced.pop(prediction, None)
                if (then := prediction.then) is not None:
                    prediction.then = None
                    then()

    def evicting(self, chunk: BlockChunk, bits: int, users: Users) -> None:
        """The engine has evicted these blocks, which leave the table next. ``users``: of the chunk: prompts that
        are not computed will be computed there again."""
        for prediction in users if isinstance(users, dict) else (users,):
            wanted = prediction.blocks[chunk] & bits
            # Where all predictions were removed, its claims are not those of the endpoint any more.
            if wanted and prediction in self._under_way and prediction.claims is self._claims.get(prediction.column):
                self._claim(prediction, chunk, wanted)

    def expire(self, now: float) -> None:
        """Drop predictions that have not come true in time, some of them if there are many."""
        work, self.due_at = 0, inf
        for predictions, seconds in ((self._announced, EVENTS_WITHIN), (self._under_way, COMPUTED_WITHIN)):
            while predictions and work < EXPIRE_LIMIT and (oldest := next(iter(predictions))).at + seconds <= now:
                work += len(oldest.marks)
                self.withdraw(oldest)
        self._look_at = now + LOOK_EVERY if work < EXPIRE_LIMIT else now
        for predictions, seconds in ((self._announced, EVENTS_WITHIN), (self._under_way, COMPUTED_WITHIN)):
            if predictions:
                self._due(next(iter(predictions)).at + seconds)

    def remove_all(self, column: int) -> Iterator[None]:
        """Take all predictions of an endpoint out of the table, in steps of one chunk each."""
        claims = self._claims.get(column, {})
        while claims:  # it may change between two steps
            chunk, claimed = claims.popitem()
            for prediction in claimed:
                prediction.marks.pop(chunk, None)
            self._table.unmark_all(chunk, column + PREDICTED)
            yield
        # Earlier predictions keep these claims; the next endpoint with the column gets others.
        self._claims.pop(column, None)

    def computed(self, prediction: Prediction) -> None:
        """The prompt is computed: the engine's events of it have come, or will within ``EVENTS_WITHIN``."""
        if prediction not in self._under_way:
            return
        del self._under_way[prediction]
        prediction.announced = True
        column = prediction.column
        for chunk, bits in list(prediction.marks.items()):
            if held := bits & chunk.held(column):
                self._drop(prediction, chunk, held)
        if prediction.marks:
            prediction.at = self._clock.monotonic()
            self._announced[prediction] = None
            self._due(prediction.at + EVENTS_WITHIN)

    def withdraw(self, prediction: Prediction) -> None:
        """It will not come true, or has: from here on only events count."""
        self._under_way.pop(prediction, None)
        self._announced.pop(prediction, None)
        for chunk, bits in list(prediction.marks.items()):
            self._drop(prediction, chunk, bits)

    def _claim(self, prediction: Prediction, chunk: BlockChunk, bits: int) -> None:
        self._table.mark(chunk, prediction.column + PREDICTED, bits)
        marks, claims = prediction.marks, prediction.claims
        marks[chunk] = bits = marks.get(chunk, 0) | bits
        claimed = claims.get(chunk)
        if claimed is None:
            claims[chunk] = {prediction: bits}
        else:
            claimed[prediction] = bits

    def _due(self, at: float) -> None:
        """A prediction lapses at this time."""
        self.due_at = min(self.due_at, max(at, self._look_at))

    def _drop(self, prediction: Prediction, chunk: BlockChunk, bits: int) -> None:
        """The prediction claims these blocks no more: those that no other claims leave the table."""
        claims, marks = prediction.claims, prediction.marks
        claimed = claims[chunk]
        if left := marks[chunk] & ~bits:
            marks[chunk] = claimed[prediction] = left
        else:
            del marks[chunk], claimed[prediction]
        for others in claimed.values():
            bits &= ~others
            if not bits:
                return
        if not claimed:
            del claims[chunk]
        predicted = prediction.column + PREDICTED
        full, rest = chunk.full, chunk.full & ~(1 << predicted)
        if full != rest and rest and bits == LEADING[len(chunk.keys)]:
            chunk.full = rest  # as mostly: others hold all of it, too
        else:
            self._table.unmark(chunk, predicted, bits)
