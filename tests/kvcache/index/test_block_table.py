from __future__ import annotations

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.kvcache.index.block_table import CHUNK_BITS, CHUNK_SIZE, LEADING, OFFSET_MASK, BlockTable, columns
from tests.kvcache.conftest import held_at, keys_of
from tests.support.examples import examples

PLACES = 3


class OnTheShelf(RuleBasedStateMachine):
    """The table against a dictionary of sets; prompts of few different blocks, some longer than a chunk."""

    prompts = st.one_of(
        st.lists(st.integers(0, 2), min_size=1, max_size=5),
        st.builds(
            lambda first, branch, length: [first] * branch + [7] * length,
            *[st.integers(n, 2 * CHUNK_SIZE) for n in (0, 1, 1)],
        ),
    )

    def __init__(self):
        super().__init__()
        self.table = BlockTable()
        self.held = defaultdict(set)

    def find(self, key):
        return [
            chunk.number << CHUNK_BITS | number
            for chunk in self.table.heads.values()
            for number, own in enumerate(chunk.keys)
            if own == key
        ]

    @rule(prompt=prompts, column=st.integers(0, PLACES - 1), data=st.data())
    def hold(self, prompt, column, data):
        """A run of a prompt, behind a block that anyone holds, or from its start."""
        keys = keys_of(*prompt)
        start = data.draw(st.integers(0, len(keys) - 1))
        while start and not any(keys[start - 1] in held for held in self.held.values()):
            start -= 1
        behind = self.find(keys[start - 1])[0] if start else -1
        for chunk, offset, count in self.table.insert(behind, keys[start:], column):
            had = self.table.mark(chunk, column, LEADING[count] << offset)
            run = chunk.keys[offset : offset + count]
            assert [had >> offset + number & 1 for number in range(count)] == [key in self.held[column] for key in run]
        self.held[column].update(keys[start:])

    @precondition(lambda self: any(self.held.values()))
    @rule(data=st.data())
    def give_up(self, data):
        column = data.draw(st.sampled_from([column for column, held in self.held.items() if held]))
        key = data.draw(st.sampled_from(sorted(self.held[column])))
        where = self.find(key)[0]
        self.table.unmark(self.table.chunk_at(where), column, 1 << (where & OFFSET_MASK))
        self.held[column].discard(key)

    @rule(column=st.integers(0, PLACES - 1))
    def leave(self, column):
        for chunk in list(self.table.heads.values()):
            self.table.unmark_all(chunk, column)
        self.held[column].clear()

    @rule(prompt=prompts)
    def look(self, prompt):
        keys = keys_of(*prompt)
        path = list(self.table.path(keys))
        assert [key for chunk, count in path for key in chunk.keys[:count]] == keys[: sum(n for _, n in path)]
        for column in range(PLACES):
            depth = 0
            for chunk, count in path:
                held = chunk.held(column) & LEADING[count]
                depth += count if held == LEADING[count] else (~held & held + 1).bit_length() - 1
                if held != LEADING[count]:
                    break
            linear = next((number for number, key in enumerate(keys) if key not in self.held[column]), len(keys))
            assert depth == linear

    @invariant()
    def the_same_is_held(self):
        for column in range(PLACES):
            assert held_at(self.table, column) == self.held[column]

    @invariant()
    def it_is_in_order(self):
        all_keys = [key for chunk in self.table.heads.values() for key in chunk.keys]
        assert len(all_keys) == len(set(all_keys)) == self.table.size
        for head, chunk in self.table.heads.items():
            assert self.table.chunks[chunk.number] is chunk
            assert head == chunk.keys[0]
            assert 0 < len(chunk.keys) <= CHUNK_SIZE
            part = chunk.part
            assert part is None or part
            assert all(0 < bits < LEADING[len(chunk.keys)] for bits in (part or {}).values())
            assert not any(chunk.full >> column & 1 for column in part or {})
            assert chunk.full or max((part or {0: 0}).values()).bit_length() == len(chunk.keys)
        assert len(self.table.heads) + len(self.table._free) == len(self.table.chunks)


OnTheShelf.TestCase.settings = examples(60, stateful_step_count=40)
TestOnTheShelf = OnTheShelf.TestCase


@given(st.lists(st.integers(0, 1), max_size=70), st.lists(st.integers(0, 1), max_size=70), st.integers(0, 3))
def test_how_much_two_chains_share(one, other, offset):
    table = BlockTable()
    first, second = keys_of(*[0, 0, 0, 1, *one][:CHUNK_SIZE]), keys_of(*[0, 0, 0, 1, *other])
    ((chunk, _, _),) = table.insert(-1, first, 0)
    expected = 0
    while expected < min(len(first), len(second)) - offset and first[offset + expected] == second[offset + expected]:
        expected += 1
    assert chunk.common_prefix(second, offset, offset) == expected


def test_a_long_prompt_is_a_chunk_for_each_64_blocks():
    table = BlockTable()
    keys = keys_of(*range(3 * CHUNK_SIZE))
    found = table.insert(-1, keys, 0)
    assert [(offset, count) for _, offset, count in found] == [(0, CHUNK_SIZE)] * 3
    assert table.key_at(found[1][0].number << CHUNK_BITS | 5) == keys[CHUNK_SIZE + 5]


def test_what_others_hold_is_not_added_to():
    table = BlockTable()
    keys = keys_of(*range(6))
    for column in (0, 1):
        ((chunk, _, count),) = table.insert(-1, keys[:3], column)
        table.mark(chunk, column, LEADING[count])
    (first, _, three), (tail, at, one) = table.insert(-1, keys[:4], 1)
    table.mark(tail, 1, LEADING[one])
    assert (first, three, at, one) == (chunk, 3, 0, 1)
    assert (chunk.full, chunk.part, len(chunk.keys)) == (0b11, None, 3)
    assert table.insert(-1, keys, 1) == [(chunk, 0, 3), (tail, 0, 1), (tail, 1, 2)], "its own grows"
    table.mark(tail, 1, LEADING[3])
    assert (tail.full, tail.part) == (0b10, None)


def test_the_bits_of_a_mask():
    assert list(columns(0b1010_0001)) == [0, 5, 7]
