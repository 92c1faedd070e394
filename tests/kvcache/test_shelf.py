from __future__ import annotations

from collections import defaultdict

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.kvcache.keys import chain
from gateway.kvcache.shelf import ALL, BITS, OFFSET, SIZE, Shelf, places
from tests.kvcache.conftest import held_at, ids

PLACES = 3


def keys_of(prompt):
    return chain(ids(*prompt), 16, 1)


class OnTheShelf(RuleBasedStateMachine):
    """The shelf against a dictionary of sets; prompts of few different blocks, some longer than a stretch."""

    prompts = st.one_of(
        st.lists(st.integers(0, 2), min_size=1, max_size=5),
        st.builds(
            lambda first, branch, length: [first] * branch + [7] * length,
            *[st.integers(n, 2 * SIZE) for n in (0, 1, 1)],
        ),
    )

    def __init__(self):
        super().__init__()
        self.shelf = Shelf()
        self.held = defaultdict(set)

    def find(self, key):
        return [
            stretch.number << BITS | number
            for stretch in self.shelf.heads.values()
            for number, own in enumerate(stretch.keys)
            if own == key
        ]

    @rule(prompt=prompts, place=st.integers(0, PLACES - 1), data=st.data())
    def hold(self, prompt, place, data):
        """A run of a prompt, behind a block that anyone holds, or from its start."""
        keys = keys_of(prompt)
        start = data.draw(st.integers(0, len(keys) - 1))
        while start and not any(keys[start - 1] in held for held in self.held.values()):
            start -= 1
        behind = self.find(keys[start - 1])[0] if start else -1
        for stretch, offset, count in self.shelf.enter(behind, keys[start:]):
            had = self.shelf.mark(stretch, place, ALL[count] << offset)
            run = stretch.keys[offset : offset + count]
            assert [had >> offset + number & 1 for number in range(count)] == [key in self.held[place] for key in run]
        self.held[place].update(keys[start:])

    @precondition(lambda self: any(self.held.values()))
    @rule(data=st.data())
    def give_up(self, data):
        place = data.draw(st.sampled_from([place for place, held in self.held.items() if held]))
        key = data.draw(st.sampled_from(sorted(self.held[place])))
        where = self.find(key)[0]
        self.shelf.unmark(self.shelf.at(where), place, 1 << (where & OFFSET))
        self.held[place].discard(key)

    @rule(place=st.integers(0, PLACES - 1))
    def leave(self, place):
        for stretch in list(self.shelf.heads.values()):
            self.shelf.leave(stretch, place)
        self.held[place].clear()

    @rule(prompt=prompts)
    def look(self, prompt):
        keys = keys_of(prompt)
        path = list(self.shelf.path(keys))
        assert [key for stretch, count in path for key in stretch.keys[:count]] == keys[: sum(n for _, n in path)]
        for place in range(PLACES):
            depth = 0
            for stretch, count in path:
                held = stretch.held(place) & ALL[count]
                depth += count if held == ALL[count] else (~held & held + 1).bit_length() - 1
                if held != ALL[count]:
                    break
            linear = next((number for number, key in enumerate(keys) if key not in self.held[place]), len(keys))
            assert depth == linear

    @invariant()
    def the_same_is_held(self):
        for place in range(PLACES):
            assert held_at(self.shelf, place) == self.held[place]

    @invariant()
    def it_is_in_order(self):
        all_keys = [key for stretch in self.shelf.heads.values() for key in stretch.keys]
        assert len(all_keys) == len(set(all_keys)) == self.shelf.size
        for head, stretch in self.shelf.heads.items():
            assert self.shelf.stretches[stretch.number] is stretch
            assert head == stretch.keys[0]
            assert 0 < len(stretch.keys) <= SIZE
            part = stretch.part
            assert part is None or part
            assert all(0 < bits < ALL[len(stretch.keys)] for bits in (part or {}).values())
            assert not any(stretch.full >> place & 1 for place in part or {})
            assert stretch.full or max((part or {0: 0}).values()).bit_length() == len(stretch.keys)
        assert len(self.shelf.heads) + len(self.shelf._free) == len(self.shelf.stretches)


OnTheShelf.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestOnTheShelf = OnTheShelf.TestCase


@given(st.lists(st.integers(0, 1), max_size=70), st.lists(st.integers(0, 1), max_size=70), st.integers(0, 3))
def test_how_much_two_chains_share(one, other, offset):
    shelf = Shelf()
    first, second = keys_of([0, 0, 0, 1, *one][:SIZE]), keys_of([0, 0, 0, 1, *other])
    ((stretch, _, _),) = shelf.enter(-1, first)
    expected = 0
    while expected < min(len(first), len(second)) - offset and first[offset + expected] == second[offset + expected]:
        expected += 1
    assert stretch.shares(second, offset, offset) == expected


def test_a_long_prompt_is_a_stretch_for_each_64_blocks():
    shelf = Shelf()
    keys = keys_of(range(3 * SIZE))
    found = shelf.enter(-1, keys)
    assert [(offset, count) for _, offset, count in found] == [(0, SIZE)] * 3
    assert shelf.key(found[1][0].number << BITS | 5) == keys[SIZE + 5]


def test_the_bits_of_a_mask():
    assert list(places(0b1010_0001)) == [0, 5, 7]
