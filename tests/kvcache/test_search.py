from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.kvcache import search
from gateway.kvcache.search import covered, depths

PLACES = 5


def linear(keys, masks, places):
    found = {}
    for place in range(PLACES):
        depth = 0
        while depth < len(keys) and masks.get(keys[depth], 0) >> place & 1:
            depth += 1
        if depth and places >> place & 1:
            found[place] = depth
    return found


masks_of_each = st.lists(st.integers(0, 2**PLACES - 1), max_size=60)
held_depths = st.lists(st.integers(0, 200), min_size=PLACES, max_size=PLACES)


@given(masks_of_each, st.integers(0, 2**PLACES - 1))
def test_a_walk_is_exact_whatever_the_holes(each, places):
    masks = dict(enumerate(each))
    assert depths(range(len(each)), lambda key: masks.get(key, 0), places) == linear(range(len(each)), masks, places)


@given(held_depths, st.integers(0, 200), st.integers(1, 20), st.integers(0, 2**PLACES - 1))
def test_a_gallop_is_exact_where_holders_only_shrink(held, count, exact, places):
    masks = {key: sum(1 << place for place in range(PLACES) if key < held[place]) for key in range(count)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "EXACT", exact)
        assert depths(range(count), masks.__getitem__, places) == linear(range(count), masks, places)


def test_a_gallop_looks_at_few_keys():
    looked = []
    count = 100_000

    def held(key):
        looked.append(key)
        return 0b11 if key < 70_000 else 0b01

    assert depths(range(count), held, 0b11) == {0: count, 1: 70_000}
    assert len(looked) < search.EXACT + 100


@given(masks_of_each, held_depths)
def test_covered_counts_what_is_held_of_a_start(each, wanted):
    wanted = {place: min(depth, len(each)) for place, depth in enumerate(wanted) if depth}
    assert covered(range(len(each)), each.__getitem__, wanted) == {
        place: sum(mask >> place & 1 for mask in each[:depth]) for place, depth in wanted.items()
    }
