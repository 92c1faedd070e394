"""Block ids as the index sees them."""

from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from gateway.commands.replay.world import as_event, token_ids
from gateway.kvcache.index.block_events import BlockRemoved, BlockStored
from gateway.kvcache.index.keys import chain
from simulator.virtual.pool import Removed, Stored, Tier


@given(st.lists(st.integers(0, 2**80), max_size=20), st.integers(1, 40))
def test_an_id_is_as_many_tokens_as_a_block_has(blocks: list[int], size: int) -> None:
    ids = token_ids(blocks, size)
    assert len(ids) == len(blocks) * size
    assert len(chain(ids, size, 0)) == len(blocks)
    assert all(len(set(ids[start : start + size])) == 1 for start in range(0, len(ids), size))
    assert token_ids([block for block in blocks if block < 2**32], 1) == array(
        "I", [block for block in blocks if block < 2**32]
    )


def test_large_ids_are_folded_and_not_cut() -> None:
    assert len(set(token_ids([7, 7 + 2**32, 7 + 2**33], 1))) == 3


def test_events_are_as_an_engine_sends_them() -> None:
    stored = as_event(Stored((5, 6), 4, Tier.GPU), 3)
    assert isinstance(stored, BlockStored)
    assert (stored.block_hashes, stored.parent_block_hash, stored.block_size) == ([5, 6], 4, 3)
    assert list(stored.token_ids) == [5, 5, 5, 6, 6, 6]
    assert stored.medium == "GPU"
    first = as_event(Stored((5,), None, Tier.GPU), 3)
    assert isinstance(first, BlockStored)
    assert first.parent_block_hash is None
    # Of another tier than the GPU an event has no tokens.
    kept = as_event(Stored((5, 6), None, Tier.CPU), 3)
    assert kept == BlockStored([5, 6], medium="CPU")
    assert as_event(Removed([2**64 + 1], Tier.CPU), 3) == BlockRemoved([1], medium="CPU")
