"""Covers: gateway/kvcache/index/matching.py, gateway/kvcache/index/holders.py."""

from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from gateway.framework.match import Match, Source
from gateway.kvcache.index.block_table import LEADING, BlockTable
from gateway.kvcache.index.holders import BELOW, ON_GPU, PREDICTED_ONLY, holders
from gateway.kvcache.index.keys import BlockKeys, chain
from gateway.kvcache.index.layers import LAYERS, Layer
from gateway.kvcache.index.matching import (
    BITMAPS_KEPT,
    Candidate,
    Candidates,
    add_matches,
    match_approximate,
    match_one,
)
from tests.kvcache.conftest import endpoint, ids

ENDPOINTS = 3
CANDIDATES = [Candidate(endpoint(10 + number), column=number * LAYERS, block_size=16) for number in range(ENDPOINTS)]
LENGTHS = st.one_of(st.integers(1, 8), st.integers(60, 140))


def keys_of(count, unit=16):
    return BlockKeys(array("Q", chain(ids(*range(count)), 16, 1)), unit, count * unit, exact=True, whole=True)


def table_of(keys, held):
    """``held``: place -> the numbers of the blocks that are there."""
    table = BlockTable()
    # Nothing in a table is held by nobody: another endpoint has all of it.
    for chunk, offset, count in table.insert(-1, keys.values, 99 * LAYERS):
        table.mark(chunk, 99 * LAYERS, LEADING[count] << offset)
    for column, numbers in held.items():
        position = 0
        for chunk, count in list(table.path(keys.values)):
            bits = sum(1 << number - position for number in numbers if position <= number < position + count)
            if bits:
                table.mark(chunk, column, bits)
            position += count
    return table


def match_from_events(keys, tokens, candidates, table, *, below, special=0):
    """As the index does it. ``special``: places that are looked at one by one."""
    several = Candidates()
    for candidate in candidates:
        several.add(candidate)
    resetting = sum(1 << candidate.column for candidate in candidates if not candidate.gpu)
    alive = sum(1 << candidate.column for candidate in candidates) ^ resetting
    groups, mixed = holders(keys.values, table, alive, ON_GPU, BELOW if below else ())
    groups += holders(keys.values, table, resetting, PREDICTED_ONLY, BELOW)[0]
    matches = {}
    special |= mixed | resetting | sum(1 << each.column for each in candidates if each.block_size != keys.unit)
    for mask, depth in add_matches(matches, groups, keys, tokens, several, special):
        for candidate in several.of(mask):
            match = match_one(table.path(keys.values), candidate, depth, keys.unit, tokens)
            if match is not None:
                matches[candidate.slot] = match
    return matches


@st.composite
def scenes(draw):
    count = draw(LENGTHS)
    run = st.tuples(st.integers(0, count), st.integers(0, count)).map(lambda pair: set(range(min(pair), max(pair))))
    some = st.one_of(run, st.builds(set.union, run, run), st.just(set(range(count))))
    held = {
        number * LAYERS + layer: draw(some)
        for number in range(ENDPOINTS)
        for layer in Layer
        if draw(st.booleans()) and layer is not Layer.APPROXIMATE
    }
    return count, held


@given(scenes(), st.integers(1, 2300), st.sets(st.integers(0, ENDPOINTS - 1)), st.booleans())
def test_it_is_the_linear_walk_with_holes_and_tiers(scene, tokens, resetting, one_by_one):
    count, held = scene
    keys = keys_of(count)
    candidates = [
        Candidate(each.endpoint, each.column, 16, number not in resetting) for number, each in enumerate(CANDIDATES)
    ]
    below = any(column % LAYERS in (Layer.CPU, Layer.STORAGE) for column in held)
    found = match_from_events(keys, tokens, candidates, table_of(keys, held), below=below, special=-one_by_one)
    for each in candidates:
        gpu, cpu, storage, predicted = (
            held.get(each.column + layer, ()) for layer in (Layer.GPU, Layer.CPU, Layer.STORAGE, Layer.PREDICTED)
        )
        gpu = gpu if each.gpu else ()
        best = []
        for number in range(count):
            on = [number in tier for tier in (gpu, cpu, storage, predicted)]
            if not any(on):
                break
            best.append("gpu" if on[0] or on[3] else "cpu" if on[1] else "storage")
        match = found.get(each.slot, Match())
        assert (match.gpu, match.cpu, match.storage) == tuple(
            16 * best.count(tier) for tier in ("gpu", "cpu", "storage")
        )
        assert match.expected_hit == min(16 * len(best), (tokens - 1) // 16 * 16)
        if best:
            last = len(best) - 1
            foreseen = last in predicted and last not in held.get(each.column, ())
            assert match.source is (Source.PREDICTED if foreseen else Source.EVENTS)
        else:
            assert each.slot not in found


def test_an_estimate_is_one():
    keys = keys_of(3)
    table = table_of(keys, {Layer.APPROXIMATE: {0, 1}, LAYERS + Layer.APPROXIMATE: {2}, 2 * LAYERS: {0, 1, 2}})
    candidates = Candidates()
    for candidate in CANDIDATES:
        candidates.add(candidate)
    alive = sum(1 << candidate.column for candidate in CANDIDATES)
    assert match_approximate(keys, 40, table, alive, candidates) == {
        10: Match(gpu=32, expected_hit=32, source=Source.ESTIMATED)
    }


def test_only_whole_blocks_of_the_engine_count():
    keys = keys_of(5)
    larger = [Candidate(endpoint(0), column=0, block_size=48), Candidate(endpoint(1), column=LAYERS, block_size=0)]
    held = {0: {0, 1, 2, 3, 4}, LAYERS: {0, 1, 2, 3, 4}}
    found = match_from_events(keys, 80, larger, table_of(keys, held), below=True)
    assert [(found[slot].gpu, found[slot].expected_hit) for slot in (0, 1)] == [(48, 48), (80, 64)]
    below = {Layer.CPU: {0, 1, 2, 3}, Layer.GPU: {0}}
    match = match_from_events(keys, 80, larger[:1], table_of(keys, below), below=True)[0]
    assert (match.gpu, match.cpu) == (16, 32)


def test_those_that_hold_equally_much_share_a_match():
    keys = keys_of(70)
    many = [Candidate(endpoint(500 - number), column=number * LAYERS, block_size=16) for number in range(300)]
    held = {each.column: set(range(5 if number % 3 else 70)) for number, each in enumerate(many[:-1])}
    found = match_from_events(keys, 70 * 16, many, table_of(keys, held), below=False)
    assert len(found) == 299
    assert {id(match) for match in found.values()} == {id(found[500]), id(found[499])}
    assert (found[500].gpu, found[500].expected_hit, found[499].gpu) == (1120, 1104, 80)


def test_bitmaps_whose_slots_are_remembered_are_bounded():
    several = Candidates()
    for number in range(10):
        several.add(Candidate(endpoint(number), column=number))
    for mask in range(1, 2 * BITMAPS_KEPT):
        assert several.slots(mask) == tuple(number for number in range(10) if mask >> number & 1)
        assert len(several._slots) <= BITMAPS_KEPT
    several.remove(several.of(1)[0])
    several.add(Candidate(endpoint(99), column=0))
    assert several.slots(0b11) == (99, 1), "another endpoint has the column"
