from __future__ import annotations

from array import array

import pytest

from gateway.core.clock import ManualClock
from gateway.core.prompt import Prompt
from gateway.framework import NO_MATCH
from gateway.framework.match import Match, Source
from gateway.kvcache.events.decode import decode
from gateway.kvcache.index.block_events import BlockStored
from gateway.kvcache.index.layers import LAYERS
from gateway.kvcache.settings import CacheSettings
from tests.kvcache.conftest import (
    CLEARED,
    END,
    Index,
    Tally,
    captured,
    endpoint,
    ids,
    index_of,
    look,
    stored,
    tokens_held,
)


def test_the_first_engine_sets_the_unit():
    index = index_of()
    early = index.keys(Prompt(ids(1, 2), 32, True))
    index.apply_one(0, stored([11], ids(1, 2)))
    assert index.unit == 32
    assert look(index, ids(1, 2, 3, 4)) == Match(gpu=32, expected_hit=32, source=Source.EVENTS)
    # A request that waited meanwhile has keys of another unit.
    assert index.match(early, 32, [endpoint(0)]) == {}
    index.placed(early, endpoint(0))
    index.settled(early, endpoint(0), 32, 0)
    assert look(index, ids(1, 2, 3, 4)).tokens == 32


def test_the_unit_can_be_learned_from_a_scrape():
    index = Index(CacheSettings(), "m", ManualClock(), Tally())
    index.add(endpoint(0, block_size=128), False)
    assert index.keys(Prompt(ids(*range(8)), 128, True)).unit == index.unit == 128


def test_engines_with_multiples_share_the_index():
    index = index_of(2)
    index.apply_one(0, stored([11, 12, 13], ids(1, 2, 3)))
    index.apply_one(1, stored([21], ids(1, 2)))
    assert index.unit == 16
    assert [tokens_held(index, slot, ids(1, 2, 3)) for slot in (0, 1)] == [48, 32]
    # A larger block counts when it is whole, and half of one is held by nobody.
    index.apply_one(1, stored([22], ids(3, 4), parent=21))
    assert look(index, ids(1, 2, 3), slot=1).tokens == 32
    assert look(index, ids(1, 2, 3, 4), slot=1) == Match(gpu=64, expected_hit=32, source=Source.EVENTS)


def test_an_engine_with_another_size_makes_the_unit_smaller():
    index = index_of(2)
    assert not index.apply_one(0, stored([11], ids(1, 2, 3)))
    assert index.unit == 48
    assert index.apply_one(1, stored([21], ids(1, 2)))
    assert index.unit == 16
    assert [tokens_held(index, slot, ids(1, 2, 3)) for slot in (0, 1)] == [0, 0]
    index.apply_one(0, stored([11], ids(1, 2, 3)))
    index.apply_one(1, stored([21], ids(1, 2)))
    assert [tokens_held(index, slot, ids(1, 2, 3)) for slot in (0, 1)] == [48, 32]


def test_a_size_that_does_not_fit_is_refused(tally):
    index = index_of(tally=tally)
    index.apply_one(0, stored([10], ids(0), kv_cache_spec_kind="sliding_window"))
    index.apply_one(0, BlockStored(block_hashes=[10], medium="CPU"))
    index.apply_one(0, stored([11], ids(1)))
    index.apply_one(0, stored([12], ids(1, size=7)))
    index.report_counts(0)
    assert (index.unit, tally.events["block-size"]) == (16, 1)
    assert tokens_held(index, 0, ids(1)) == 16


def test_a_prompts_end_within_a_block_says_nothing_of_the_block_size(tally):
    """vLLM 0.32 on hybrid models: blocks are large, and a prompt's tail has the size of what is hashed at once."""
    index = index_of(tally=tally)
    assert not index.apply_one(0, stored([11, 12], ids(1, 2, size=32)))
    assert not index.apply_one(0, stored([19], ids(3, size=8), parent=777))
    assert not index.apply_one(0, stored([13], ids(3, size=32), parent=12))
    index.report_counts(0)
    assert index.unit == 32
    assert tally.events == {"stored": 3, "partial-tail": 1}
    assert tokens_held(index, 0, ids(1, 2, 3, size=32)) == 96
    index.clear(0)  # another process, with other blocks
    assert index.apply_one(0, stored([21], ids(3, size=8)))
    assert index.unit == 8


def test_a_prompts_end_is_known_where_the_engine_tells_its_block_size_otherwise():
    index = Index(CacheSettings(), "m", ManualClock(), Tally())
    index.add(endpoint(0, block_size=32), True)
    index.apply_one(0, stored([19], ids(3, size=8)))
    assert index.blocks == 0
    index.apply_one(0, stored([11, 12], ids(1, 2, size=8)))
    assert index.unit == 8, "two blocks of one prompt are no tail, whatever was told before"


# the bound


def test_the_index_is_bounded_and_keeps_what_is_used():
    index = index_of(2, max_blocks=100)
    index.apply_one(0, stored([1], ids(1000)))
    for number in range(300):
        index.placed(index.keys(Prompt(ids(1000), 17, True)), endpoint(0))
        index.apply_one(number % 2, stored([10 + number], ids(number)))
        assert index.blocks <= 100
    assert look(index, ids(1000), count=17).tokens == 16
    assert look(index, ids(0), count=17).tokens == 0
    assert look(index, ids(299), slot=1, count=17).tokens == 16


def test_the_bound_is_of_the_whole_index():
    index = index_of(4, max_blocks=10)
    for slot in range(4):
        index.apply_one(slot, stored(range(8), ids(*range(8))))
    assert sum(len(state.blocks) for state in index._states.values()) <= 10


def test_what_waits_for_its_parent_is_within_the_bound():
    index = index_of(3, max_blocks=100)
    for number in range(0, 300, 10):
        names = range(1000 + number, 1010 + number)
        index.apply_one(number // 10 % 3, stored(names, ids(*names), parent=7))
        index.apply_one(0, stored([number], ids(number)))
        assert sum(state.blocks.size for state in index._states.values()) <= 100
    assert tokens_held(index, 0, ids(290)) == 16
    for slot in range(3):
        index.remove(slot)
    assert index.sweep(1000)
    assert (index.blocks, index._limit.total) == (0, 0)


def test_what_is_not_yet_swept_is_within_the_bound():
    index = index_of(max_blocks=500)
    for cycle in range(10):
        for number in range(4):
            first = 1000 * cycle + 100 * number
            index.apply_one(0, stored(range(first, first + 100), ids(*range(first, first + 100))))
            assert index.blocks <= 600
        index.apply_one(0, CLEARED)
    assert look(index, ids(*range(9000, 9100))) == NO_MATCH


# what vLLM really sends


@pytest.mark.parametrize(
    ("name", "blocks", "said"),
    [
        ("a_replay_from0", 6, {"stored": 17, "cleared": 2}),
        ("a_sha256", 6, {"stored": 6, "cleared": 1}),
        ("u_bytes_noseed", 49, {"stored": 49}),
        ("pd_decode", 20, {"stored": 20}),
        ("pd_prefill", 0, {"stored": 18, "orphan": 17}),  # it begins with message 4: nothing has a known parent
    ],
)
def test_captures_leave_the_index_as_the_engine_was(name, blocks, said, tally):
    index = index_of(tally=tally)
    last = {}
    for frames in captured(f"{name}.bin"):
        if frames[-2] != END:
            for event in decode(frames[-1]).events:
                index.apply_one(0, event)
                if isinstance(event, BlockStored) and event.parent_block_hash is None:
                    last[tuple(event.token_ids)] = (event.extra_keys or [None])[0]
            index.report_counts(0)
    assert (index.unit, index.blocks) == (32, blocks)
    assert tally.events == said
    for prompt, extra in last.items():
        keys = index.keys(Prompt(array("I", prompt), len(prompt), True), None, extra[0] if extra else None)
        assert index.match(keys, len(prompt), [endpoint(0)])[0].tokens == len(prompt)


def test_a_capture_is_replayed_twice_the_same(tally):
    """Live messages after a replay are the tail of it: the same engine, the same index."""
    index = index_of(2, tally=tally)
    for slot, name in enumerate(("a_replay_from0.bin", "a_sha256.bin")):
        for frames in captured(name):
            if frames[-2] != END:
                for event in decode(frames[-1]).events:
                    index.apply_one(slot, event)
    assert {(chunk.full, chunk.part is None) for chunk in index._table.heads.values()} == {(1 | 1 << LAYERS, True)}
