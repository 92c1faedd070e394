"""One leg's work, in the load and in the cache. It is not in ``placing.py``, since it is compiled: the structs there
cannot be."""

from __future__ import annotations

from gateway.fleet.load.booking import Booking
from gateway.kvcache.index.use import BlockUse


class LegWork(Booking):
    """One leg's work on its endpoint: its load, and ``blocks``, its prompt in the cache, which ``book`` sets."""

    __slots__ = ("blocks",)
    blocks: BlockUse

    def unreported(self) -> None:
        """As in ``Booking``, or when the endpoint's KV events tell of the whole prompt, if that is sooner."""
        super().unreported()
        self.blocks.when_announced(self.announced)

    def announced(self) -> None:
        """The prompt is computed, some time ago: nothing is learned from when that is known."""
        self.expire_prefill(self._ledger.now())

    def computed(self) -> None:
        """The first token came."""
        self.first_token()
        self.blocks.computed()
