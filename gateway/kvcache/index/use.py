"""How a request uses the blocks of its endpoint, from its placement until its end."""

from __future__ import annotations

from gateway.framework import Endpoint
from gateway.kvcache.index.block_table import BlockChunk
from gateway.kvcache.index.eviction import EvictionOrder
from gateway.kvcache.index.indexed_endpoints import IndexedEndpoints
from gateway.kvcache.index.keys import BlockKeys
from gateway.kvcache.index.predictions import Prediction


class BlockUse:
    """One request's prompt on one endpoint. Every method may be called in any order, and more than once.

    ``prediction``, ``order``: None if the endpoint's events are not followed.
    """

    __slots__ = ("_blocks", "_computed", "_endpoint", "_index", "_keys", "_order", "_prediction")

    def __init__(
        self,
        index: IndexedEndpoints,
        keys: BlockKeys,
        endpoint: Endpoint,
        prediction: Prediction | None = None,
        order: EvictionOrder | None = None,
    ) -> None:
        self._index = index
        self._keys = keys
        self._endpoint = endpoint
        self._prediction = prediction
        self._order = order
        self._computed = False
        self._blocks: dict[BlockChunk, int] = {}
        if prediction is not None and order is not None:
            self._blocks = dict(prediction.marks)
            order.use(self, self._blocks)

    def computed(self) -> None:
        """The first token came: the endpoint holds the prompt, and its events report so or are about to."""
        self._computed = True
        if (prediction := self._prediction) is not None:
            prediction.owner.computed(prediction)

    def reported(self, expected: int, cached: int | None) -> None:
        """The engine reported ``cached`` tokens of the prompt as cached, where ``expected`` were expected."""
        self._index.settled(self._keys, self._endpoint, expected, cached)
        if cached is not None and cached < expected and (prediction := self._prediction) is not None:
            prediction.owner.withdraw(prediction)

    def end(self, *, computed: bool = False) -> None:
        """The request is over, however it ended. ``computed``: and by now the prompt is; else what was not computed
        before will not be."""
        prediction, self._prediction = self._prediction, None
        if prediction is not None and not self._computed:
            if computed:
                prediction.owner.computed(prediction)
            else:
                prediction.owner.withdraw(prediction)
        order, self._order = self._order, None
        if order is not None:
            order.free(self, self._blocks)
