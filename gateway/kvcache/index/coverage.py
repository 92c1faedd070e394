"""How far each endpoint's events tell what it holds, as bitmaps of the endpoints' first columns in the block table.

A prompt is matched with all endpoints at once: what distinguishes them is kept here as it changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gateway.framework import Endpoint
from gateway.kvcache.index.endpoint_state import EndpointState
from gateway.kvcache.index.matching import Candidates


class Coverage:
    """``states``: of the index's endpoints, by slot. ``followed``: endpoints whose events tell what they hold, unless
    their engines make other tokens of a prompt; every other is approximated. Among ``followed``: ``resetting``: their
    GPU columns do not count, since a reset is worked through; ``partial``: they may hold more than their events say;
    ``uneven``: their blocks are larger than the index's unit, or unknown; ``tiered``: they hold blocks below the GPU.
    ``asked``, ``asked_bits``: endpoints, and the bitmap of those that are here.
    """

    def __init__(self, states: Mapping[int, EndpointState]) -> None:
        self.followed = self.resetting = self.partial = self.uneven = self.tiered = 0
        self.candidates = Candidates()
        self._states = states
        self.asked: Sequence[Endpoint] = ()
        self.asked_bits = 0

    def add(self, state: EndpointState, unit: int) -> None:
        self.candidates.add(state.candidate)
        self.update(state, unit)
        self.asked, self.asked_bits = (), 0

    def remove(self, state: EndpointState) -> None:
        self.candidates.remove(state.candidate)
        self._clear(state.bit)
        self.asked, self.asked_bits = (), 0

    def update(self, state: EndpointState, unit: int) -> None:
        """Something of this may have changed: what the state is told, or what its events have shown."""
        bit, candidate = state.bit, state.candidate
        self._clear(bit)
        state.last_evidence = evidence = state.evidence
        events_seen, candidate.block_size, tiered = evidence
        candidate.gpu = state.reset_work is None
        # As ``EndpointState.covered_by_events``, which asks about a prompt's keys, too; a test holds them equal.
        if state.events and events_seen and not state.replaying:
            self.followed |= bit
        if not candidate.gpu:
            self.resetting |= bit
        if state.partial:
            self.partial |= bit
        if candidate.block_size != unit:
            self.uneven |= bit
        if tiered:
            self.tiered |= bit

    def ask(self, endpoints: Sequence[Endpoint]) -> int:
        """The bitmap of ``endpoints``. Who has them in ``asked`` has it already: most times it is the same tuple."""
        states, bits = self._states, 0
        for endpoint in endpoints:
            if (state := states.get(endpoint.slot)) is not None:
                bits |= state.bit
        if isinstance(endpoints, tuple):
            self.asked, self.asked_bits = endpoints, bits
        return bits

    def bits_of(self, names: frozenset[str]) -> int:
        """The bitmap of the endpoints with these names."""
        bits = 0
        for state in self._states.values():
            if state.endpoint.name in names:
                bits |= state.bit
        return bits

    def _clear(self, bit: int) -> None:
        self.followed &= ~bit
        self.resetting &= ~bit
        self.partial &= ~bit
        self.uneven &= ~bit
        self.tiered &= ~bit
