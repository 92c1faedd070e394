from __future__ import annotations

import pytest

from gateway.kvcache.events import BlockStored
from gateway.kvcache.holdings import COUNT_MAX, Holdings, Tier, tier_of
from gateway.kvcache.keys import chain, root
from gateway.kvcache.orphans import MAX_ORPHANS
from tests.kvcache.conftest import ids, removed, stored

BIT = 0b100


class Room(Holdings):
    """Holdings with a unit of 16 tokens, and masks in which another endpoint holds key 7."""

    def __init__(self) -> None:
        self.tiers: tuple[dict[int, int], ...] = ({7: 1}, {}, {})
        super().__init__(16, self.tiers, BIT)

    def take_in(self, event: BlockStored) -> str:
        assert self.problem(event) == ""
        return self.named(event)[1]

    def held(self, tier: Tier = Tier.GPU) -> set[int]:
        return {key for key, mask in self.tiers[tier].items() if mask & BIT}


@pytest.fixture
def room():
    return Room()


def keys_of(*numbers, adapter=None, salt=None, size=16):
    return chain(ids(*numbers, size=size), 16, root(True, adapter, salt))


def test_runs_are_chained_to_their_parents(room):
    assert room.take_in(stored([101, 102], ids(1, 2))) == ""
    assert room.take_in(stored([103], ids(3), parent=102)) == ""
    assert room.held() == set(keys_of(1, 2, 3))
    assert (len(room), room.block_size) == (3, 16)
    assert room.tiers[Tier.GPU][7] == 1


def test_the_keys_of_a_run_are_told(room):
    assert room.named(stored([101, 102], ids(1, 2))) == (keys_of(1, 2), "")


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


def test_tiers_are_added_to_known_hashes_only(room):
    room.take_in(stored([101], ids(1)))
    placeholder = BlockStored(block_hashes=[101, 109], medium="cpu")
    assert room.problem(placeholder) == ""
    assert room.stored(placeholder) == "unknown-hash"
    assert room.stored(stored([101], ids(9), medium="STORAGE")) == ""
    room.removed(removed(101))
    assert (room.held(), room.held(Tier.CPU), room.held(Tier.STORAGE)) == (set(), set(keys_of(1)), set(keys_of(1)))
    assert not room.only_gpu
    room.removed(removed(101, medium="CPU"))
    room.removed(removed(101, medium="CPU"))
    room.removed(removed(101, medium="STORAGE"))
    assert (len(room), room.held(Tier.CPU), room.held(Tier.STORAGE)) == (0, set(), set())


def test_a_block_comes_back_to_the_gpu(room):
    room.take_in(stored([101], ids(1)))
    room.stored(stored([101], ids(1), medium="CPU"))
    room.removed(removed(101))
    room.take_in(stored([101], ids(1)))
    assert room.held() == room.held(Tier.CPU) == set(keys_of(1))


def test_a_reset_empties_the_gpu_alone(room):
    room.take_in(stored([101, 102], ids(1, 2)))
    room.take_in(stored([101], ids(1)))
    room.take_in(stored([150], ids(5), parent=140))
    room.stored(stored([102], ids(2), medium="CPU"))
    room.cleared()
    assert (room.held(), room.held(Tier.CPU)) == (set(), set(keys_of(1, 2)[1:]))
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
        {"extra_keys": [None, [["image", 3]], None]},
        {"extra_keys": [None, [b"digest"], None]},
        {"extra_keys": [None, ["a second salt"], None]},
        {"extra_keys": [["salt", ["image", 3]], None, None]},
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
    assert room.named(stored([101], [token] * 16)) == ([], "malformed")
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
    assert room.named(stored([101, 102], ids(1, 2))) == (keys_of(1, 2), "")
    assert room.named(stored([103], ids(3), parent=102)) == (keys_of(1, 2, 3, 4, 5)[2:], "")
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


def test_an_orphan_of_media_has_no_key(room):
    room.take_in(stored([103], ids(3), parent=102, extra_keys=[[["image", 0]]]))
    room.take_in(stored([101, 102], ids(1, 2)))
    assert (room.held(), len(room)) == (set(keys_of(1, 2)), 3)


def test_orphans_are_bounded(room):
    for number in range(0, 3 * MAX_ORPHANS, 64):
        names = range(10**6 + number, 10**6 + number + 64)
        room.take_in(stored(names, ids(*[number % 97] * 64), parent=5))
    assert len(room._orphans) == MAX_ORPHANS


def test_a_recomputed_block_has_one_copy(room):
    for _ in range(3):
        room.take_in(stored([101, 102], ids(1, 2)))
    room.recomputed(set(keys_of(1, 2)[1:]))
    room.removed(removed(101, 102))
    assert room.held() == set(keys_of(1))


def test_the_oldest_go_first_but_what_is_used(room):
    for number in range(1, 6):
        room.take_in(stored([100 + number], ids(number)))
    used = set(keys_of(1)) | set(keys_of(3))
    room.forget_oldest(2, used)
    assert room.held() == {keys_of(number)[0] for number in (1, 3, 5)}
    assert used == set()
    room.forget_oldest(10, used)
    assert (room.held(), len(room)) == (set(), 0)


def test_its_keys_are_those_in_the_masks(room):
    room.take_in(stored([101, 102], ids(1, 2)))
    assert sorted(room) == sorted(keys_of(1, 2))


def test_media_are_read_in_any_case():
    assert [tier_of(medium) for medium in (None, "gpu", "CPU", "Storage", "TAPE")] == [
        Tier.GPU,
        Tier.GPU,
        Tier.CPU,
        Tier.STORAGE,
        None,
    ]
