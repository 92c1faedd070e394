from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.framework import Medium
from gateway.kvcache.blocks import MAX_ANEW
from gateway.kvcache.copies import COUNT_MAX
from gateway.kvcache.events import BlockRemoved, BlockStored, Event
from gateway.kvcache.holdings import Holdings
from gateway.kvcache.keys import chain, chain_past, root
from gateway.kvcache.layers import LAYERS, Layer
from gateway.kvcache.names import Ages
from gateway.kvcache.orphans import MAX_ORPHANS
from gateway.kvcache.shelf import Shelf
from tests.kvcache.conftest import held_at, ids, removed, stored


class Room(Holdings):
    """Holdings with a unit of 16 tokens, on a shelf where another endpoint holds blocks of its own.

    ``old``: hashes are packed, but for one, after each event.
    """

    def __init__(self, old: bool = False) -> None:
        self.old = old
        self.shelf = Shelf()
        self.other = Holdings(16, self.shelf, LAYERS)
        self.other.named(stored([1, 2], ids(1, 2)))
        super().__init__(16, self.shelf, 0)

    def take_in(self, event: BlockStored) -> str:
        assert self.problem(event) == ""
        return self.named(event)

    def quick(self, events: Sequence[Event], at: int = 0) -> tuple[int, int, int]:
        return self.aged(super().quick(events, at))

    def named(self, event: BlockStored, copies: bool = True) -> str:
        return self.aged(super().named(event, copies))

    def stored(self, event: BlockStored) -> str:
        return self.aged(super().stored(event))

    def removed(self, event: BlockRemoved) -> str:
        return self.aged(super().removed(event))

    def aged(self, result: Any) -> Any:
        if self.old:
            self.age(Ages(above=0, young=1000, least=1, chunk=1), 1000)
        return result

    def held(self, tier: Layer = Layer.GPU) -> set[int]:
        assert held_at(self.shelf, LAYERS) == set(keys_of(1, 2))
        return held_at(self.shelf, tier)


@pytest.fixture(params=[False, True], ids=["young", "old"])
def room(request):
    return Room(request.param)


def keys_of(*numbers, adapter=None, salt=None, size=16):
    return chain(ids(*numbers, size=size), 16, root(True, adapter, salt))


def test_runs_are_chained_to_their_parents(room):
    assert room.take_in(stored([101, 102], ids(1, 2))) == ""
    assert room.take_in(stored([103], ids(3), parent=102)) == ""
    assert room.held() == set(keys_of(1, 2, 3))
    assert (len(room), room.block_size) == (3, 16)


def test_each_copy_counts(room):
    room.take_in(stored([101], ids(1)))
    room.take_in(stored([101], ids(1)))
    assert room.removed(removed(101)) == ""
    assert room.held() == set(keys_of(1))
    assert room.removed(removed(101)) == ""
    assert room.held() == set()
    assert room.removed(removed(101)) == "unknown-hash"
    assert len(room) == 0


def test_copies_are_counted_up_to_a_limit(room):
    for _ in range(COUNT_MAX + 10):
        room.take_in(stored([101], ids(1)))
    for _ in range(COUNT_MAX):
        assert room.held()
        room.removed(removed(101))
    assert not room.held()


def test_two_hashes_may_stand_for_the_same_tokens(room):
    room.take_in(stored([101], ids(1)))
    room.take_in(stored([201], ids(1)))
    room.removed(removed(101))
    assert room.held() == set(keys_of(1))
    room.removed(removed(201))
    assert room.held() == set()


def test_larger_blocks_have_several_keys_and_share_their_starts(room):
    room.take_in(stored([101], ids(1, 2)))
    room.take_in(stored([102], ids(1, 3)))
    assert room.block_size == 32
    room.removed(removed(101))
    assert room.held() == set(keys_of(1, 3))
    room.removed(removed(102))
    assert room.held() == set()


def test_a_start_that_three_larger_blocks_share_is_held_until_the_last_goes(room):
    for number in (2, 3, 4):
        room.take_in(stored([100 + number], ids(1, number)))
    for number in (2, 3):
        room.removed(removed(100 + number))
        assert keys_of(1)[0] in room.held()
    room.removed(removed(104))
    assert room.held() == set()


def test_a_block_that_grows_behind_a_stretch_may_be_there_already(room):
    """Another endpoint holds it without what is before it, so that it is the head of a stretch of its own."""
    room.take_in(stored([105, 106, 107], ids(5, 6, 7)))
    room.other.named(stored([5, 6, 8], ids(5, 6, 8)))
    room.other.removed(removed(6, 5))
    room.removed(removed(107))
    assert room.quick([stored([108], ids(8), parent=106)]) == (1, 1, 0)
    keys = keys_of(5, 6, 8)
    assert held_at(room.shelf, 0) == set(keys)
    assert [len(stretch.keys) for stretch, _ in room.shelf.path(keys)] == [2, 1]
    room.other.removed(removed(8))


def test_tiers_are_added_to_known_hashes_only(room):
    room.take_in(stored([101], ids(1)))
    placeholder = BlockStored(block_hashes=[101, 109], medium="cpu")
    assert room.problem(placeholder) == ""
    assert room.stored(placeholder) == "unknown-hash"
    assert room.stored(stored([101], ids(9), medium="STORAGE")) == ""
    room.removed(removed(101))
    assert (room.held(), room.held(Layer.CPU), room.held(Layer.STORAGE)) == (set(), set(keys_of(1)), set(keys_of(1)))
    for _ in room.clear() or ():
        pass
    room.removed(removed(101, medium="CPU"))
    room.removed(removed(101, medium="CPU"))
    room.removed(removed(101, medium="STORAGE"))
    assert (len(room), room.held(Layer.CPU), room.held(Layer.STORAGE)) == (0, set(), set())


def test_a_block_comes_back_to_the_gpu(room):
    room.take_in(stored([101], ids(1)))
    room.stored(stored([101], ids(1), medium="CPU"))
    room.removed(removed(101))
    room.take_in(stored([101], ids(1)))
    assert room.held() == room.held(Layer.CPU) == set(keys_of(1))


def test_a_reset_empties_the_gpu_alone(room):
    room.take_in(stored([101, 102], ids(1, 2)))
    room.take_in(stored([101], ids(1)))
    room.take_in(stored([150], ids(5), parent=140))
    room.stored(stored([102], ids(2), medium="CPU"))
    for _ in room.clear() or ():
        pass
    assert (room.held(), room.held(Layer.CPU)) == (set(), set(keys_of(1, 2)[1:]))
    assert room.removed(removed(150)) == "unknown-hash"
    assert len(room) == 1


def test_adapter_and_salt_are_part_of_the_key(room):
    room.take_in(stored([101, 102], ids(1, 2), lora_name="a", extra_keys=[["a", "s"], ["a"]]))
    room.take_in(stored([103], ids(3), lora_name="a", extra_keys=[["a"]], parent=102))
    assert room.held() == set(keys_of(1, 2, 3, adapter="a", salt="s"))


def test_a_salt_named_like_the_adapter_is_a_salt(room):
    room.take_in(stored([101], ids(1), lora_name="a", extra_keys=[["a", "a"]]))
    assert room.held() == set(keys_of(1, adapter="a", salt="a"))


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
def test_what_tokens_do_not_tell_has_no_key_nor_what_is_behind_it(room, odd):
    assert room.take_in(stored([101, 102, 103], ids(1, 2, 3), **odd)) == "extra-keys"
    named = 1 if odd.get("extra_keys", [0])[0] is None else 0
    assert room.held() == set(keys_of(1, 2, 3)[:named])
    assert room.take_in(stored([104], ids(4), parent=103)) == "extra-keys"
    assert len(room) == 4
    assert [room.removed(removed(name)) for name in (101, 102, 103, 104)] == [""] * 4
    assert room.held() == set()


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
def test_what_cannot_be_used_is_named(room, event, word):
    assert room.problem(event) == word


@pytest.mark.parametrize("token", [-1, 2**32])
def test_numbers_that_are_no_tokens_make_no_key(room, token):
    assert room.named(stored([101], [token] * 16)) == "malformed"
    assert len(room) == 0


def test_one_group_speaks_for_the_engine(room):
    room.take_in(stored([101], ids(1), group_idx=2))
    assert room.problem(stored([101], ids(1), group_idx=3)) == "other-group"
    assert room.removed(removed(101, group_idx=3)) == "other-group"
    assert room.removed(removed(101, medium="TAPE")) == "other-group"
    assert room.removed(removed(101, group_idx=2, medium="TAPE")) == "unknown-medium"
    # A connector names no group.
    assert room.problem(BlockStored(block_hashes=[101], medium="CPU")) == ""
    assert room.removed(removed(101, group_idx=None)) == ""
    assert room.held() == set()


def test_orphans_are_named_when_their_parent_comes(room):
    assert room.take_in(stored([103, 104], ids(3, 4), parent=102)) == "orphan"
    assert room.take_in(stored([105], ids(5), parent=104)) == "orphan"
    assert room.take_in(stored([105], ids(5), parent=104)) == "orphan"
    assert room.held() == set()
    assert room.removed(removed(103)) == ""
    # Block 103 is gone, so that nothing is known behind 102; 104 still waits for it, and 105 twice for 104.
    assert room.take_in(stored([101, 102], ids(1, 2))) == ""
    assert room.held() == set(keys_of(1, 2))
    assert room.take_in(stored([103], ids(3), parent=102)) == ""
    assert room.held() == set(keys_of(1, 2, 3, 4, 5))
    room.removed(removed(105))
    assert room.held() == set(keys_of(1, 2, 3, 4, 5))


def test_a_run_behind_an_unknown_parent_joins_what_it_knows(room):
    room.take_in(stored([101, 102], ids(1, 2)))
    room.removed(removed(101))
    assert room.take_in(stored([102, 103], ids(2, 3), parent=101)) == "orphan"
    assert room.held() == set(keys_of(1, 2, 3)[1:])
    room.removed(removed(102))
    assert room.held() == set(keys_of(1, 2, 3)[1:])  # a copy of 102 is left


def test_an_orphan_of_embeddings_has_no_key(room):
    room.take_in(stored([103], ids(3), parent=102, extra_keys=[[b"digest"]]))
    room.take_in(stored([101, 102], ids(1, 2)))
    assert (room.held(), len(room)) == (set(keys_of(1, 2)), 3)


def test_media_are_in_the_keys(room):
    room.take_in(stored([101, 102], ids(1, 2), extra_keys=[None, [["image", 3]]]))
    room.take_in(stored([103], ids(3), parent=102, extra_keys=[[["image", -13]]]))
    room.take_in(stored([104], ids(4), parent=103))
    expected = chain_past(ids(1, 2, 3, 4), 16, root(True, None, None), [Medium(19, "image")])
    assert room.held() == set(expected)
    assert expected[0] == keys_of(1)[0]


def test_an_orphan_keeps_its_media(room):
    room.take_in(stored([102, 103], ids(2, 3), parent=101, extra_keys=[[["a", 3], ["b", 8]], [["b", -8], ["c", 5]]]))
    room.take_in(stored([101], ids(1)))
    media = [Medium(19, "a"), Medium(24, "b"), Medium(37, "c")]
    assert room.held() == set(chain_past(ids(1, 2, 3), 16, root(True, None, None), media))


def test_a_run_behind_an_orphan_keeps_its_media(room):
    """Its first block waits for a parent; the second is known, and the third is put behind it."""
    room.take_in(stored([101, 102], ids(1, 2), extra_keys=[[["a", 0]], [["a", -16]]]))
    room.removed(removed(101))
    extra = [[["a", -16]], [["a", -32], ["b", 5]]]
    assert room.take_in(stored([102, 103], ids(2, 3), parent=101, extra_keys=extra)) == "orphan"
    media = [Medium(0, "a"), Medium(37, "b")]
    assert room.held() == set(chain_past(ids(1, 2, 3), 16, root(True, None, None), media)[1:])


def test_orphans_are_bounded(room):
    for number in range(0, 3 * MAX_ORPHANS, 64):
        names = range(10**6 + number, 10**6 + number + 64)
        room.take_in(stored(names, ids(*[number % 97] * 64), parent=5))
    assert len(room._orphans) == MAX_ORPHANS


def test_a_recomputed_block_has_one_copy(room):
    for _ in range(3):
        room.take_in(stored([101, 102], ids(1, 2)))
    room.recomputed({1})
    room.removed(removed(101, 102))
    assert room.held() == set(keys_of(1))


def test_copies_that_are_heard_of_after_a_block_was_recomputed_count(room):
    for _ in range(3):
        room.take_in(stored([101, 102], ids(1, 2)))
    room.recomputed([0, 1])
    room.take_in(stored([101, 102], ids(1, 2)))
    room.removed(removed(101, 102))
    assert room.held() == set(keys_of(1, 2))
    room.removed(removed(101, 102))
    assert room.held() == set()
    room.recomputed([0, 1])
    for _ in range(2):
        room.take_in(stored([101], ids(5)))
    room.removed(removed(101))
    assert room.held() == set(keys_of(5)), "another block is there now"


def test_what_is_recomputed_is_remembered_within_bounds(room):
    for _ in range(2):
        room.take_in(stored([101, 102], ids(1, 2)))
    for start in range(0, 10 * MAX_ANEW, MAX_ANEW // 2):
        room.recomputed(range(start, start + MAX_ANEW // 2))
        assert len(room._blocks._anew) <= MAX_ANEW
    room.removed(removed(101, 102))
    assert room.held() == set(keys_of(1, 2))


def test_the_oldest_go_first_but_what_is_used(room):
    for number in range(1, 6):
        room.take_in(stored([100 + number], ids(number)))
    for number in (1, 3):
        use(room, number, now=1)
    room.forget_oldest(2, now=1)
    assert room.held() == {keys_of(number)[0] for number in (1, 3, 5)}
    # In the next lap only what was used since the first began is left.
    use(room, 3, now=2)
    room.forget_oldest(2, now=2)
    assert room.held() == set(keys_of(3))
    room.forget_oldest(10, now=2)
    assert (room.held(), len(room)) == (set(), 0)


def use(room, number, now):
    room.shelf.heads[keys_of(number)[0]].used = now


def test_forgetting_ends_where_everything_is_used(room):
    for number in range(3, 103):
        room.take_in(stored([100 + number], ids(number)))
        use(room, number, now=1)
    room.forget_oldest(1, now=1)
    assert len(room) == 99


def test_forgotten_blocks_are_forgotten_on_all_tiers(room):
    room.take_in(stored([103, 104], ids(3, 4)))
    room.take_in(stored([103], ids(3)))
    room.stored(stored([103], [], block_size=0, medium="CPU"))
    room.forget_oldest(2, now=0)
    assert (room.held(), room.held(Layer.CPU), len(room)) == (set(), set(), 0)
    room.take_in(stored([103], ids(3)))
    room.removed(removed(103))
    assert room.held() == set()


def test_a_copy_ends_with_age(room):
    """Engines evict what nobody uses: a second copy that has seen the cache filled once more is none, announced or
    not."""
    room.has_room(10)
    room.take_in(stored([103], ids(3)))
    room.take_in(stored([103], ids(3)))
    for number in range(20):
        event = stored([200 + number], ids(20 + number), parent=(199 + number) if number else 103)
        assert room.quick([event]) == (1, 1, 0)
    room.removed(removed(103))
    assert keys_of(3)[0] not in room.held()


def test_what_is_told_again_is_no_copy(room):
    room.take_in(stored([103, 104], ids(3, 4)))
    assert room.named(stored([103, 104, 105], ids(3, 4, 5)), copies=False) == ""
    room.removed(removed(104, 103))
    assert room.held() == set(keys_of(3, 4, 5)[2:])


def test_a_hash_that_stands_for_other_tokens_is_not_believed(room):
    room.take_in(stored([103, 104], ids(3, 4)))
    assert room.take_in(stored([103, 104, 105], ids(3, 9, 5))) == "other-content"
    assert room.held() == set(keys_of(3, 4))


def test_a_hash_twice_in_a_run_counts_once(room):
    assert room.take_in(stored([103, 103], ids(3, 4))) == "other-content"
    room.removed(removed(103))
    room.removed(removed(103))
    assert (room.held(), len(room)) == (set(), 0)


def test_leaving_takes_all_off_the_shelf(room):
    room.take_in(stored([101, 102], ids(1, 2)))
    room.take_in(stored([103], ids(3), parent=102, extra_keys=[[["image", 0]]]))
    room.stored(stored([102], [], block_size=0, medium="CPU"))
    for _ in room.leave():
        pass
    assert room.held() == room.held(Layer.CPU) == set()
    assert room.shelf.size == 2


events = st.lists(
    st.tuples(st.sampled_from(["one", "run", "gone", "cpu", "cpu gone"]), st.integers(0, 30), st.integers(1, 3)),
    max_size=40,
)


@given(events, st.booleans())
def test_the_quick_way_is_the_long_one(steps, old):
    """One block at a time or in runs, quick or not, with hashes that are packed or not: the same blocks are held."""
    quick, slow = Room(old), Room()
    for what, number, count in steps:
        # Block n is behind block n - 1 but for each fifth, which begins a prompt.
        run = [n for n in range(number, number + count) if n // 5 == number // 5]
        if what in ("one", "run"):
            parent = 100 + number - 1 if number % 5 else None
            event = stored([100 + n for n in run], ids(*run), parent=parent)
            if not quick.quick([event])[0]:
                quick.named(event)
            for n in run:
                slow.named(stored([100 + n], ids(n), parent=100 + n - 1 if n % 5 else None))
        elif what == "gone":
            for n in reversed(run):
                if not quick.quick([removed(100 + n)])[0]:
                    quick.removed(removed(100 + n))
                slow.removed(removed(100 + n))
        else:
            for room in (quick, slow):
                event = stored([100 + n for n in run], [], block_size=0, medium="CPU")
                room.stored(event) if what == "cpu" else room.removed(removed(*event.block_hashes, medium="CPU"))
        assert [quick.held(tier) for tier in (Layer.GPU, Layer.CPU)] == [
            slow.held(tier) for tier in (Layer.GPU, Layer.CPU)
        ]
        assert len(quick) == len(slow)
