"""Covers: gateway/kvcache/index/engine_blocks.py, gateway/kvcache/index/run_store.py,
gateway/kvcache/index/block_store.py, gateway/kvcache/index/second_chance.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.clock import ManualClock
from gateway.core.prompt import MediaItem
from gateway.kvcache.index.block_events import BlockRemoved, BlockStored, Event, has_only_tokens
from gateway.kvcache.index.block_store import MAX_RECOMPUTED
from gateway.kvcache.index.block_table import BlockTable
from gateway.kvcache.index.copies import COUNT_MAX
from gateway.kvcache.index.engine_blocks import EngineBlocks
from gateway.kvcache.index.hash_map import Packing
from gateway.kvcache.index.keys import chain, chain_with_media, root
from gateway.kvcache.index.layers import LAYERS, Layer
from gateway.kvcache.index.pending_blocks import MAX_PENDING
from gateway.kvcache.index.predictions import Predictions
from tests.kvcache.conftest import held_at, ids, removed, stored


class Scene:
    """EngineBlocks with a unit of 16 tokens, in a table where another endpoint holds blocks of its own.

    ``packed``: hashes are packed, but for one, after each event.
    """

    def __init__(self, packed: bool = False) -> None:
        self.packed = packed
        self.table = BlockTable()
        nothing = Predictions(self.table, ManualClock())
        self.other = EngineBlocks(16, self.table, LAYERS, nothing)
        self.other.store_keyed(stored([1, 2], ids(1, 2)))
        self._blocks = EngineBlocks(16, self.table, 0, nothing)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._blocks, name)

    def __len__(self) -> int:
        return len(self._blocks)

    def take_in(self, event: BlockStored) -> str:
        assert self.problem(event) == ""
        return self.store_keyed(event)

    def apply_simple(self, events: Sequence[Event], at: int = 0) -> tuple[int, int, int]:
        return self.packed_after(self._blocks.apply_simple(events, at))

    def store_keyed(self, event: BlockStored, copies: bool = True) -> str:
        return self.packed_after(self._blocks.store_keyed(event, copies))

    def store_tier(self, event: BlockStored) -> str:
        return self.packed_after(self._blocks.store_tier(event))

    def remove(self, event: BlockRemoved) -> str:
        return self.packed_after(self._blocks.remove(event))

    def packed_after(self, result: Any) -> Any:
        if self.packed:
            self.pack(Packing(above=0, recent=1000, least=1, batch=1), 1000)
        return result

    def held(self, tier: Layer = Layer.GPU) -> set[int]:
        assert held_at(self.table, LAYERS) == set(keys_of(1, 2))
        return held_at(self.table, tier)


@pytest.fixture(params=[False, True], ids=["young", "old"])
def blocks(request):
    return Scene(request.param)


def keys_of(*numbers, adapter=None, salt=None, size=16):
    return chain(ids(*numbers, size=size), 16, root(True, adapter, salt))


def test_runs_are_chained_to_their_parents(blocks):
    assert blocks.take_in(stored([101, 102], ids(1, 2))) == ""
    assert blocks.take_in(stored([103], ids(3), parent=102)) == ""
    assert blocks.held() == set(keys_of(1, 2, 3))
    assert (len(blocks), blocks.block_size) == (3, 16)


def test_each_copy_counts(blocks):
    blocks.take_in(stored([101], ids(1)))
    blocks.take_in(stored([101], ids(1)))
    assert blocks.remove(removed(101)) == ""
    assert blocks.held() == set(keys_of(1))
    assert blocks.remove(removed(101)) == ""
    assert blocks.held() == set()
    assert blocks.remove(removed(101)) == "unknown-hash"
    assert len(blocks) == 0


def test_copies_are_counted_up_to_a_limit(blocks):
    for _ in range(COUNT_MAX + 10):
        blocks.take_in(stored([101], ids(1)))
    for _ in range(COUNT_MAX):
        assert blocks.held()
        blocks.remove(removed(101))
    assert not blocks.held()


def test_two_hashes_may_stand_for_the_same_tokens(blocks):
    blocks.take_in(stored([101], ids(1)))
    blocks.take_in(stored([201], ids(1)))
    blocks.remove(removed(101))
    assert blocks.held() == set(keys_of(1))
    blocks.remove(removed(201))
    assert blocks.held() == set()


def test_larger_blocks_have_several_keys_and_share_their_starts(blocks):
    blocks.take_in(stored([101], ids(1, 2)))
    blocks.take_in(stored([102], ids(1, 3)))
    assert blocks.block_size == 32
    blocks.remove(removed(101))
    assert blocks.held() == set(keys_of(1, 3))
    blocks.remove(removed(102))
    assert blocks.held() == set()


def test_a_start_that_three_larger_blocks_share_is_held_until_the_last_goes(blocks):
    for number in (2, 3, 4):
        blocks.take_in(stored([100 + number], ids(1, number)))
    for number in (2, 3):
        blocks.remove(removed(100 + number))
        assert keys_of(1)[0] in blocks.held()
    blocks.remove(removed(104))
    assert blocks.held() == set()


def test_a_block_that_grows_behind_a_chunk_may_be_there_already(blocks):
    """Another endpoint holds it without what is before it, so that it is the head of a chunk of its own."""
    blocks.take_in(stored([105, 106, 107], ids(5, 6, 7)))
    blocks.other.store_keyed(stored([5, 6, 8], ids(5, 6, 8)))
    blocks.other.remove(removed(6, 5))
    blocks.remove(removed(107))
    assert blocks.apply_simple([stored([108], ids(8), parent=106)]) == (1, 1, 0)
    keys = keys_of(5, 6, 8)
    assert held_at(blocks.table, 0) == set(keys)
    assert [len(chunk.keys) for chunk, _ in blocks.table.path(keys)] == [2, 1]
    blocks.other.remove(removed(8))


def test_tiers_are_added_to_known_hashes_only(blocks):
    blocks.take_in(stored([101], ids(1)))
    placeholder = BlockStored(block_hashes=[101, 109], medium="cpu")
    assert blocks.problem(placeholder) == ""
    assert blocks.store_tier(placeholder) == "unknown-hash"
    assert blocks.store_tier(stored([101], ids(9), medium="STORAGE")) == ""
    blocks.remove(removed(101))
    assert (blocks.held(), blocks.held(Layer.CPU), blocks.held(Layer.STORAGE)) == (
        set(),
        set(keys_of(1)),
        set(keys_of(1)),
    )
    for _ in blocks.clear() or ():
        pass
    blocks.remove(removed(101, medium="CPU"))
    blocks.remove(removed(101, medium="CPU"))
    blocks.remove(removed(101, medium="STORAGE"))
    assert (len(blocks), blocks.held(Layer.CPU), blocks.held(Layer.STORAGE)) == (0, set(), set())


def test_a_block_comes_back_to_the_gpu(blocks):
    blocks.take_in(stored([101], ids(1)))
    blocks.store_tier(stored([101], ids(1), medium="CPU"))
    blocks.remove(removed(101))
    blocks.take_in(stored([101], ids(1)))
    assert blocks.held() == blocks.held(Layer.CPU) == set(keys_of(1))


def test_a_reset_empties_the_gpu_alone(blocks):
    blocks.take_in(stored([101, 102], ids(1, 2)))
    blocks.take_in(stored([101], ids(1)))
    blocks.take_in(stored([150], ids(5), parent=140))
    blocks.store_tier(stored([102], ids(2), medium="CPU"))
    for _ in blocks.clear() or ():
        pass
    assert (blocks.held(), blocks.held(Layer.CPU)) == (set(), set(keys_of(1, 2)[1:]))
    assert blocks.remove(removed(150)) == "unknown-hash"
    assert len(blocks) == 1


def test_adapter_and_salt_are_part_of_the_key(blocks):
    blocks.take_in(stored([101, 102], ids(1, 2), lora_name="a", extra_keys=[["a", "s"], ["a"]]))
    blocks.take_in(stored([103], ids(3), lora_name="a", extra_keys=[["a"]], parent=102))
    assert blocks.held() == set(keys_of(1, 2, 3, adapter="a", salt="s"))


def test_a_salt_named_like_the_adapter_is_a_salt(blocks):
    blocks.take_in(stored([101], ids(1), lora_name="a", extra_keys=[["a", "a"]]))
    assert blocks.held() == set(keys_of(1, adapter="a", salt="a"))


@pytest.mark.parametrize(
    "odd",
    [
        {"extra_keys": [None, [["image", 16]], None]},
        {"extra_keys": [None, [b"digest"], None]},
        {"extra_keys": [None, ["a second salt"], None]},
        {"extra_keys": [["salt", ["image", 3]], None, None]},
        {"extra_keys": [[["image", -3]], None, None]},
        {"lora_id": 3},
    ],
)
def test_what_tokens_do_not_tell_has_no_key_nor_what_is_behind_it(blocks, odd):
    assert blocks.take_in(stored([101, 102, 103], ids(1, 2, 3), **odd)) == "extra-keys"
    named = 1 if odd.get("extra_keys", [0])[0] is None else 0
    assert blocks.held() == set(keys_of(1, 2, 3)[:named])
    assert blocks.take_in(stored([104], ids(4), parent=103)) == "extra-keys"
    assert len(blocks) == 4
    assert [blocks.remove(removed(block_hash)) for block_hash in (101, 102, 103, 104)] == [""] * 4
    assert blocks.held() == set()


BESIDE_TOKENS = {"lora_id": 3, "extra_keys": [["salt"]]}
"""Fields that change what a block is, beside its tokens, with a value of each."""

READ_ELSEWHERE = {
    *("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_name"),  # in both ways of storing
    *("medium", "group_idx", "kv_cache_spec_kind"),  # say where blocks are, and whether they count
    *("kv_cache_spec_sliding_window", "locality", "ownership", "session_id"),  # nothing is used of them
}


def test_every_field_is_known_to_change_what_a_block_is_or_not() -> None:
    """A new field of an event belongs in one of the two. If in the first, ``has_only_tokens`` asks for it."""
    assert {*BlockStored.__struct_fields__} == {*BESIDE_TOKENS, *READ_ELSEWHERE}


@pytest.mark.parametrize(("field", "value"), BESIDE_TOKENS.items())
def test_a_block_of_more_than_tokens_gets_no_key_of_its_tokens_alone(blocks, field, value):
    """Not by the quick way, not by the long one."""
    blocks.take_in(stored([101], ids(1)))
    odd = stored([102], ids(2), parent=101, **{field: value})
    assert not has_only_tokens(odd)
    assert has_only_tokens(stored([102], ids(2), parent=101, extra_keys=[None]))
    assert blocks.apply_simple([odd]) == (0, 0, 0)
    assert blocks.take_in(odd) == "extra-keys"
    assert blocks.held() == set(keys_of(1))


@pytest.mark.parametrize(
    ("event", "word"),
    [
        (stored([101], ids(1), kv_cache_spec_kind="sliding_window"), "other-group"),
        (stored([101], ids(1), medium="TAPE"), "unknown-medium"),
        (stored([101, 102], ids(1), block_size=16), "tokens-do-not-fit"),
        (stored([101], ids(1), block_size=0), "tokens-do-not-fit"),
        (stored([101], ids(1), block_size=-16), "tokens-do-not-fit"),
    ],
)
def test_what_cannot_be_used_is_named(blocks, event, word):
    assert blocks.problem(event) == word


@pytest.mark.parametrize("token", [-1, 2**32])
def test_numbers_that_are_no_tokens_make_no_key(blocks, token):
    assert blocks.store_keyed(stored([101], [token] * 16)) == "malformed"
    assert len(blocks) == 0


def test_one_group_speaks_for_the_engine(blocks):
    blocks.take_in(stored([101], ids(1), group_idx=2))
    assert blocks.problem(stored([101], ids(1), group_idx=3)) == "other-group"
    assert blocks.remove(removed(101, group_idx=3)) == "other-group"
    assert blocks.remove(removed(101, medium="TAPE")) == "other-group"
    assert blocks.remove(removed(101, group_idx=2, medium="TAPE")) == "unknown-medium"
    # A connector names no group.
    assert blocks.problem(BlockStored(block_hashes=[101], medium="CPU")) == ""
    assert blocks.remove(removed(101, group_idx=None)) == ""
    assert blocks.held() == set()


def test_pending_blocks_are_stored_when_their_parent_comes(blocks):
    assert blocks.take_in(stored([103, 104], ids(3, 4), parent=102)) == "orphan"
    assert blocks.take_in(stored([105], ids(5), parent=104)) == "orphan"
    assert blocks.take_in(stored([105], ids(5), parent=104)) == "orphan"
    assert blocks.held() == set()
    assert blocks.remove(removed(103)) == ""
    # Block 103 is gone, so that nothing is known behind 102; 104 still waits for it, and 105 twice for 104.
    assert blocks.take_in(stored([101, 102], ids(1, 2))) == ""
    assert blocks.held() == set(keys_of(1, 2))
    assert blocks.take_in(stored([103], ids(3), parent=102)) == ""
    assert blocks.held() == set(keys_of(1, 2, 3, 4, 5))
    blocks.remove(removed(105))
    assert blocks.held() == set(keys_of(1, 2, 3, 4, 5))


def test_a_run_behind_an_unknown_parent_joins_what_it_knows(blocks):
    blocks.take_in(stored([101, 102], ids(1, 2)))
    blocks.remove(removed(101))
    assert blocks.take_in(stored([102, 103], ids(2, 3), parent=101)) == "orphan"
    assert blocks.held() == set(keys_of(1, 2, 3)[1:])
    blocks.remove(removed(102))
    assert blocks.held() == set(keys_of(1, 2, 3)[1:])  # a copy of 102 is left


def test_a_pending_block_of_embeddings_has_no_key(blocks):
    blocks.take_in(stored([103], ids(3), parent=102, extra_keys=[[b"digest"]]))
    blocks.take_in(stored([101, 102], ids(1, 2)))
    assert (blocks.held(), len(blocks)) == (set(keys_of(1, 2)), 3)


def test_media_are_in_the_keys(blocks):
    blocks.take_in(stored([101, 102], ids(1, 2), extra_keys=[None, [["image", 3]]]))
    blocks.take_in(stored([103], ids(3), parent=102, extra_keys=[[["image", -13]]]))
    blocks.take_in(stored([104], ids(4), parent=103))
    expected = chain_with_media(ids(1, 2, 3, 4), 16, root(True, None, None), [MediaItem(19, "image")])
    assert blocks.held() == set(expected)
    assert expected[0] == keys_of(1)[0]


def test_a_pending_block_keeps_its_media(blocks):
    blocks.take_in(stored([102, 103], ids(2, 3), parent=101, extra_keys=[[["a", 3], ["b", 8]], [["b", -8], ["c", 5]]]))
    blocks.take_in(stored([101], ids(1)))
    media = [MediaItem(19, "a"), MediaItem(24, "b"), MediaItem(37, "c")]
    assert blocks.held() == set(chain_with_media(ids(1, 2, 3), 16, root(True, None, None), media))


def test_a_run_behind_a_pending_block_keeps_its_media(blocks):
    """Its first block waits for a parent; the second is known, and the third is put behind it."""
    blocks.take_in(stored([101, 102], ids(1, 2), extra_keys=[[["a", 0]], [["a", -16]]]))
    blocks.remove(removed(101))
    extra = [[["a", -16]], [["a", -32], ["b", 5]]]
    assert blocks.take_in(stored([102, 103], ids(2, 3), parent=101, extra_keys=extra)) == "orphan"
    media = [MediaItem(0, "a"), MediaItem(37, "b")]
    assert blocks.held() == set(chain_with_media(ids(1, 2, 3), 16, root(True, None, None), media)[1:])


def test_pending_blocks_are_bounded(blocks):
    for number in range(0, 3 * MAX_PENDING, 64):
        names = range(10**6 + number, 10**6 + number + 64)
        blocks.take_in(stored(names, ids(*[number % 97] * 64), parent=5))
    assert len(blocks._pending.blocks) == MAX_PENDING


def test_a_recomputed_block_has_one_copy(blocks):
    for _ in range(3):
        blocks.take_in(stored([101, 102], ids(1, 2)))
    blocks.mark_recomputed({1})
    blocks.remove(removed(101, 102))
    assert blocks.held() == set(keys_of(1))


def test_copies_that_are_heard_of_after_a_block_was_recomputed_count(blocks):
    for _ in range(3):
        blocks.take_in(stored([101, 102], ids(1, 2)))
    blocks.mark_recomputed([0, 1])
    blocks.take_in(stored([101, 102], ids(1, 2)))
    blocks.remove(removed(101, 102))
    assert blocks.held() == set(keys_of(1, 2))
    blocks.remove(removed(101, 102))
    assert blocks.held() == set()
    blocks.mark_recomputed([0, 1])
    for _ in range(2):
        blocks.take_in(stored([101], ids(5)))
    blocks.remove(removed(101))
    assert blocks.held() == set(keys_of(5)), "another block is there now"


def test_what_is_recomputed_is_remembered_within_bounds(blocks):
    for _ in range(2):
        blocks.take_in(stored([101, 102], ids(1, 2)))
    for start in range(0, 10 * MAX_RECOMPUTED, MAX_RECOMPUTED // 2):
        blocks.mark_recomputed(range(start, start + MAX_RECOMPUTED // 2))
        assert len(blocks._recomputed_at) <= MAX_RECOMPUTED
    blocks.remove(removed(101, 102))
    assert blocks.held() == set(keys_of(1, 2))


def test_the_oldest_go_first_but_what_is_used(blocks):
    for number in range(1, 6):
        blocks.take_in(stored([100 + number], ids(number)))
    for number in (1, 3):
        use(blocks, number, now=1)
    blocks.drop_oldest(2, now=1)
    assert blocks.held() == {keys_of(number)[0] for number in (1, 3, 5)}
    # In the next lap only what was used since the first began is left.
    use(blocks, 3, now=2)
    blocks.drop_oldest(2, now=2)
    assert blocks.held() == set(keys_of(3))
    blocks.drop_oldest(10, now=2)
    assert (blocks.held(), len(blocks)) == (set(), 0)


def use(blocks, number, now):
    blocks.table.heads[keys_of(number)[0]].used = now


def test_forgetting_ends_where_everything_is_used(blocks):
    for number in range(3, 103):
        blocks.take_in(stored([100 + number], ids(number)))
        use(blocks, number, now=1)
    blocks.drop_oldest(1, now=1)
    assert len(blocks) == 99


def test_forgotten_blocks_are_forgotten_on_all_tiers(blocks):
    blocks.take_in(stored([103, 104], ids(3, 4)))
    blocks.take_in(stored([103], ids(3)))
    blocks.store_tier(stored([103], [], block_size=0, medium="CPU"))
    blocks.drop_oldest(2, now=0)
    assert (blocks.held(), blocks.held(Layer.CPU), len(blocks)) == (set(), set(), 0)
    blocks.take_in(stored([103], ids(3)))
    blocks.remove(removed(103))
    assert blocks.held() == set()


def test_a_copy_ends_with_age(blocks):
    """Engines evict what nobody uses: a second copy that has seen the cache filled once more is none, announced or
    not."""
    blocks.copies.turnover = 10
    blocks.take_in(stored([103], ids(3)))
    blocks.take_in(stored([103], ids(3)))
    for number in range(20):
        event = stored([200 + number], ids(20 + number), parent=(199 + number) if number else 103)
        assert blocks.apply_simple([event]) == (1, 1, 0)
    blocks.remove(removed(103))
    assert keys_of(3)[0] not in blocks.held()


def test_what_is_told_again_is_no_copy(blocks):
    blocks.take_in(stored([103, 104], ids(3, 4)))
    assert blocks.store_keyed(stored([103, 104, 105], ids(3, 4, 5)), copies=False) == ""
    blocks.remove(removed(104, 103))
    assert blocks.held() == set(keys_of(3, 4, 5)[2:])


def test_a_hash_that_stands_for_other_tokens_is_not_believed(blocks):
    blocks.take_in(stored([103, 104], ids(3, 4)))
    assert blocks.take_in(stored([103, 104, 105], ids(3, 9, 5))) == "other-content"
    assert blocks.held() == set(keys_of(3, 4))


def test_a_hash_twice_in_a_run_counts_once(blocks):
    assert blocks.take_in(stored([103, 103], ids(3, 4))) == "other-content"
    blocks.remove(removed(103))
    blocks.remove(removed(103))
    assert (blocks.held(), len(blocks)) == (set(), 0)


def test_leaving_takes_all_out_of_the_table(blocks):
    blocks.take_in(stored([101, 102], ids(1, 2)))
    blocks.take_in(stored([103], ids(3), parent=102, extra_keys=[[["image", 0]]]))
    blocks.store_tier(stored([102], [], block_size=0, medium="CPU"))
    for _ in blocks.remove_all():
        pass
    assert blocks.held() == blocks.held(Layer.CPU) == set()
    assert blocks.table.size == 2


events = st.lists(
    st.tuples(st.sampled_from(["one", "run", "gone", "cpu", "cpu gone"]), st.integers(0, 30), st.integers(1, 3)),
    max_size=40,
)


@given(events, st.booleans())
def test_the_quick_way_is_the_long_one(steps, packed):
    """One block at a time or in runs, quick or not, with hashes that are packed or not: the same blocks are held."""
    quick, slow = Scene(packed), Scene()
    for what, number, count in steps:
        # Block n is behind block n - 1 but for each fifth, which begins a prompt.
        run = [n for n in range(number, number + count) if n // 5 == number // 5]
        if what in ("one", "run"):
            parent = 100 + number - 1 if number % 5 else None
            event = stored([100 + n for n in run], ids(*run), parent=parent)
            if not quick.apply_simple([event])[0]:
                quick.store_keyed(event)
            for n in run:
                slow.store_keyed(stored([100 + n], ids(n), parent=100 + n - 1 if n % 5 else None))
        elif what == "gone":
            for n in reversed(run):
                if not quick.apply_simple([removed(100 + n)])[0]:
                    quick.remove(removed(100 + n))
                slow.remove(removed(100 + n))
        else:
            for blocks in (quick, slow):
                event = stored([100 + n for n in run], [], block_size=0, medium="CPU")
                blocks.store_tier(event) if what == "cpu" else blocks.remove(removed(*event.block_hashes, medium="CPU"))
        assert [quick.held(tier) for tier in (Layer.GPU, Layer.CPU)] == [
            slow.held(tier) for tier in (Layer.GPU, Layer.CPU)
        ]
        assert len(quick) == len(slow)
