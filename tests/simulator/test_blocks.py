"""The block pool against a naive model of vLLM's, and the rules that a KV-aware router must know."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from simulator.blocks import BlockPool, Cleared, HashChain, MediaItem, Removed, Stored
from tests.support.examples import examples

SIZE = 4


def chain(tokens: list[int], adapter: str | None = None, salt: str | None = None, seed: int = 0) -> HashChain:
    made = HashChain(SIZE, seed, adapter, salt)
    made.extend(array("I", tokens))
    return made


def fill(pool: BlockPool, tokens: list[int]) -> list[int]:
    """Compute a prompt as an engine does: blocks for all of it, names for the full ones."""
    made = chain(tokens)
    blocks = pool.take(-(-len(tokens) // SIZE))
    pool.name(blocks, made, array("I", tokens), 0, len(tokens) // SIZE)
    return blocks


class TestHashChain:
    def test_only_full_blocks_have_a_name(self) -> None:
        assert len(chain(list(range(11))).names) == 2

    def test_a_name_depends_on_everything_before_it(self) -> None:
        same = chain([1, 2, 3, 4, 5, 6, 7, 8]).names
        other = chain([9, 2, 3, 4, 5, 6, 7, 8]).names
        assert same[0] != other[0]
        assert same[1] != other[1]

    def test_growing_step_by_step_gives_the_same_names(self) -> None:
        tokens = array("I")
        grown = HashChain(SIZE)
        for token in range(13):
            tokens.append(token)
            grown.extend(tokens)
        assert grown.names == chain(list(range(13))).names

    @pytest.mark.parametrize("other", [{"adapter": "a"}, {"salt": "a"}, {"seed": 1}])
    def test_adapter_salt_and_seed_make_other_names(self, other: dict[str, str]) -> None:
        tokens = list(range(8))
        assert not set(chain(tokens).names) & set(chain(tokens, **other).names)

    def test_extra_keys_are_those_of_vllm(self) -> None:
        both = HashChain(SIZE, adapter="lora", salt="salty")
        assert [both.extra(0), both.extra(1)] == [("lora", "salty"), ("lora",)]
        assert HashChain(SIZE, salt="salty").extra(1) is None

    def test_media_are_in_every_block_that_they_have_a_part_in(self) -> None:
        media = (MediaItem(2, 6, "a"), MediaItem(9, 1, "b"), MediaItem(11, 2, "a"))
        made = HashChain(SIZE, adapter="lora", salt="salty", media=media)
        assert [made.extra(block) for block in range(5)] == [
            ("lora", ("a", 2), "salty"),
            ("lora", ("a", -2)),
            ("lora", ("b", 1), ("a", 3)),
            ("lora", ("a", -1)),
            ("lora",),
        ]

    def test_another_image_makes_other_names_from_its_block_on(self) -> None:
        tokens = array("I", range(12))
        both = [HashChain(SIZE, media=[MediaItem(5, 2, name)]) for name in "ab"]
        for made in both:
            made.extend(tokens)
        assert [a == b for a, b in zip(*(made.names for made in both), strict=True)] == [True, False, False]
        assert both[0].names[0] == chain(list(range(4))).names[0]


class TestBlockPool:
    def test_the_null_block_is_never_taken(self) -> None:
        pool = BlockPool(4, SIZE)
        assert sorted(pool.take(3)) == [1, 2, 3]
        with pytest.raises(IndexError, match="1 blocks asked for, 0 free"):
            pool.take(1)

    def test_a_released_block_is_remembered_until_it_is_taken(self) -> None:
        pool = BlockPool(4, SIZE)
        names = chain([1, 2, 3, 4]).names
        blocks = fill(pool, [1, 2, 3, 4])
        pool.release(blocks)
        assert pool.match(names, 9) == blocks
        assert pool.usage == 0
        pool.take(3)
        assert pool.match(names, 9) == []
        assert pool.drain()[-1] == Removed(names[0])

    def test_the_end_of_a_prompt_is_forgotten_first(self) -> None:
        pool = BlockPool(4, SIZE)
        names = chain(list(range(12))).names
        pool.release(fill(pool, list(range(12))))
        pool.take(1)
        assert pool.held == set(names[:2])

    def test_two_blocks_may_have_one_name_and_each_eviction_is_announced(self) -> None:
        pool = BlockPool(3, SIZE)
        name = chain([1, 2, 3, 4]).names[0]
        first, second = fill(pool, [1, 2, 3, 4]), fill(pool, [1, 2, 3, 4])
        pool.release(first)
        pool.drain()
        pool.take(1)
        assert pool.drain() == [Removed(name)]
        assert pool.held == {name}, "the second copy is still there"
        pool.release(second)
        pool.take(1)
        assert pool.drain() == [Removed(name)]
        assert pool.held == set()

    def test_a_touched_block_cannot_be_taken(self) -> None:
        pool = BlockPool(4, SIZE)
        names = chain([1, 2, 3, 4]).names
        pool.release(fill(pool, [1, 2, 3, 4]))
        hits = pool.match(names, 1)
        assert pool.fits(hits, 2)
        assert not pool.fits(hits, 3)
        pool.touch(hits)
        assert pool.free == 2

    def test_a_run_is_announced_with_its_parent_and_tokens(self) -> None:
        pool = BlockPool(9, SIZE)
        tokens = array("I", range(12))
        made = chain(list(tokens))
        blocks = pool.take(3)
        pool.name(blocks, made, tokens, 0, 1)
        pool.name(blocks, made, tokens, 1, 3)
        pool.name(blocks, made, tokens, 3, 3)
        first, second = (event for event in pool.drain() if isinstance(event, Stored))
        assert (first.parent, list(first.tokens)) == (None, [0, 1, 2, 3])
        assert (second.parent, list(second.tokens)) == (made.names[0], list(range(4, 12)))
        assert second.hashes == tuple(made.names[1:])

    def test_clearing_waits_for_the_last_user(self) -> None:
        pool = BlockPool(4, SIZE)
        blocks = fill(pool, [1, 2, 3, 4])
        assert not pool.clear()
        pool.release(blocks)
        pool.drain()
        assert pool.clear()
        assert pool.held == set()
        assert pool.drain() == [Cleared()]


@dataclass
class Naive:
    """The pool as one would write it first: a list of free blocks, and a dictionary of names."""

    free: list[int] = field(default_factory=list)
    users: dict[int, int] = field(default_factory=dict)
    names: dict[int, bytes] = field(default_factory=dict)


class Pool(RuleBasedStateMachine):
    """Random lives of prompts over few tokens, so that prefixes are shared and evicted all the time."""

    BLOCKS = 8

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(self.BLOCKS, SIZE)
        self.naive = Naive(free=list(range(1, self.BLOCKS)))
        self.live: list[list[int]] = []
        self.heard: dict[bytes, int] = {}

    @rule(prompt=st.lists(st.integers(0, 1), min_size=1, max_size=16))
    def begin(self, prompt: list[int]) -> None:
        names = chain(prompt).names
        hits = self.pool.match(names, (len(prompt) - 1) // SIZE)
        expected = []
        for name in names[: (len(prompt) - 1) // SIZE]:
            holders = [block for block, held in self.naive.names.items() if held == name]
            if not holders:
                break
            expected.append(holders[0])
        assert hits == expected
        wanted = -(-len(prompt) // SIZE) - len(hits)
        idle = [block for block in hits if not self.naive.users.get(block)]
        fits = wanted <= len(self.naive.free) - len(idle)
        assert self.pool.fits(hits, wanted) == fits
        if not fits:
            return
        self.pool.touch(hits)
        for block in hits:
            if block in self.naive.free:
                self.naive.free.remove(block)
            self.naive.users[block] = self.naive.users.get(block, 0) + 1
        taken = self.pool.take(wanted)
        assert taken == self.naive.free[:wanted]
        del self.naive.free[:wanted]
        for block in taken:
            self.naive.names.pop(block, None)
            self.naive.users[block] = 1
        blocks = hits + taken
        full = len(prompt) // SIZE
        self.pool.name(blocks, chain(prompt), array("I", prompt), len(hits), full)
        for block, name in list(zip(blocks, names, strict=False))[len(hits) :]:
            self.naive.names[block] = name
        self.live.append(blocks)

    @precondition(lambda self: self.live)
    @rule(which=st.integers(0, 100))
    def end(self, which: int) -> None:
        blocks = self.live.pop(which % len(self.live))
        self.pool.release(blocks)
        for block in reversed(blocks):
            self.naive.users[block] -= 1
            if not self.naive.users[block]:
                self.naive.free.insert(len(self.naive.free) if block in self.naive.names else 0, block)

    @rule()
    def clear(self) -> None:
        assert self.pool.clear() == (not self.live)
        if not self.live:
            self.naive.names.clear()

    @invariant()
    def holds_the_same(self) -> None:
        assert self.pool.held == set(self.naive.names.values())
        assert self.pool.free == len(self.naive.free)

    @invariant()
    def events_tell_it(self) -> None:
        """Counting the events of each name gives what is held: the rule that an index may rely on."""
        for event in self.pool.drain():
            if isinstance(event, Cleared):
                self.heard.clear()
            elif isinstance(event, Removed):
                self.heard[event.hash] -= 1
            else:
                for name in event.hashes:
                    self.heard[name] = self.heard.get(name, 0) + 1
        assert {name for name, count in self.heard.items() if count} == self.pool.held


TestPool = Pool.TestCase
TestPool.settings = examples(60, stateful_step_count=30)
