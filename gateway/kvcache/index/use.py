"""How a request uses the blocks of its endpoint, from its placement until its end."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from gateway.framework import Endpoint
from gateway.kvcache.index.eviction import EvictionOrder
from gateway.kvcache.index.indexed_endpoints import IndexedEndpoints
from gateway.kvcache.index.keys import BlockKeys
from gateway.kvcache.index.predictions import Prediction


class BlockUse(msgspec.Struct, eq=False):
    """One request's prompt on one endpoint. Every method may be called in any order, and more than once.

    ``prediction``, ``order``: None if the endpoint's events are not followed; ``prediction``, too, if the request is
    over. ``is_computed``: the first token came.
    """

    index: IndexedEndpoints
    keys: BlockKeys
    endpoint: Endpoint
    prediction: Prediction | None = None
    order: EvictionOrder | None = None
    is_computed: bool = False

    def computed(self) -> None:
        """The first token came: the endpoint holds the prompt, and its events report so or are about to."""
        self.is_computed = True
        if (prediction := self.prediction) is not None:
            prediction.owner.computed(prediction)

    def when_announced(self, then: Callable[[], None]) -> None:
        """Call ``then`` once the endpoint's events have told of the whole prompt: by then it is computed. Never, where
        they are not followed, or the endpoint held all of it before."""
        prediction = self.prediction
        if prediction is not None and prediction.marks:
            prediction.then = then

    def reported(self, expected: int, cached: int | None) -> None:
        """The engine reported ``cached`` tokens of the prompt as cached, where ``expected`` were expected."""
        self.index.settled(self.keys, self.endpoint, expected, cached)
        if cached is not None and cached < expected and (prediction := self.prediction) is not None:
            prediction.owner.withdraw(prediction)

    def end(self, *, computed: bool = False) -> None:
        """The request is over, however it ended. ``computed``: and by now the prompt is; else what was not computed
        before will not be."""
        prediction, order, self.prediction = self.prediction, self.order, None
        if prediction is None or order is None:
            return
        prediction.then = None
        if not self.is_computed:
            if computed:
                prediction.owner.computed(prediction)
            else:
                prediction.owner.withdraw(prediction)
        order.free(prediction)
