"""Reports of blocks: a prompt may ask its endpoint's engine to announce again what it holds of it."""

from __future__ import annotations

from gateway.kvcache.index.indexed_endpoints import IndexedEndpoints
from gateway.kvcache.index.keys import BlockKeys


class ReportedEndpoints(IndexedEndpoints):
    """The endpoints of an index, and which of their engines are asked for reports, by which prompts."""

    def may_reannounce(self, slot: int) -> bool:
        """Whether some prompts may still ask the endpoint's engine to announce their blocks again."""
        state = self._states.get(slot)
        return state is not None and state.reannounces_left > 0

    def claim_reannounce(self, slot: int, keys: BlockKeys) -> bool:
        """Whether this prompt is to ask for that; if so, it counts as one of those that may."""
        state = self._states.get(slot)
        if (
            state is None
            or state.reannounces_left < 1
            or not (keys.values and state.has_engine_keys(keys) and keys.unit == self.unit)
        ):
            return False
        state.reannounces_left -= 1
        return True

    def expect_report(self, slot: int, keys: BlockKeys) -> None:
        """The engine was asked to announce again what it holds of a prompt: what it announces then are no new
        copies."""
        state = self._states.get(slot)
        if state is not None and keys.values and keys.unit == self.unit:
            state.expect_report(keys.values[0])

    def cancel_report(self, slot: int, keys: BlockKeys) -> None:
        """The leg that asked for it failed: the report will not come, unless it has come already."""
        state = self._states.get(slot)
        if state is not None and keys.values and keys.unit == self.unit:
            state.drop_report(keys.values[0])
