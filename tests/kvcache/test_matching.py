from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.framework import Match, Source
from gateway.kvcache.keys import BlockKeys, chain
from gateway.kvcache.layers import LAYERS, Layer
from gateway.kvcache.matching import Candidate, match_estimated, match_told
from gateway.kvcache.shelf import ALL, Shelf
from tests.kvcache.conftest import ids

ENDPOINTS = 3
CANDIDATES = [Candidate(slot=10 + number, place=number * LAYERS, block_size=16) for number in range(ENDPOINTS)]
LENGTHS = st.one_of(st.integers(1, 8), st.integers(60, 140))


def keys_of(count, unit=16):
    return BlockKeys(chain(ids(*range(count)), 16, 1), unit, count * unit, True, True)


def shelf_of(keys, held):
    """``held``: place -> the numbers of the blocks that are there."""
    shelf = Shelf()
    # Nothing on a shelf is held by nobody: another endpoint has all of it.
    for stretch, offset, count in shelf.enter(-1, keys):
        shelf.mark(stretch, 99 * LAYERS, ALL[count] << offset)
    for place, numbers in held.items():
        position = 0
        for stretch, count in list(shelf.path(keys)):
            bits = sum(1 << number - position for number in numbers if position <= number < position + count)
            if bits:
                shelf.mark(stretch, place, bits)
            position += count
    return shelf


@st.composite
def scenes(draw):
    count = draw(LENGTHS)
    run = st.tuples(st.integers(0, count), st.integers(0, count)).map(lambda pair: set(range(min(pair), max(pair))))
    some = st.one_of(run, st.builds(set.union, run, run), st.just(set(range(count))))
    held = {
        number * LAYERS + layer: draw(some)
        for number in range(ENDPOINTS)
        for layer in Layer
        if draw(st.booleans()) and layer is not Layer.ESTIMATED
    }
    return count, held


@given(scenes(), st.integers(1, 2300), st.sets(st.integers(0, ENDPOINTS - 1)))
def test_it_is_the_linear_walk_with_holes_and_tiers(scene, tokens, resetting):
    count, held = scene
    keys = keys_of(count)
    candidates = [
        Candidate(each.slot, each.place, 16, number not in resetting) for number, each in enumerate(CANDIDATES)
    ]
    below = any(place % LAYERS in (Layer.CPU, Layer.STORAGE) for place in held)
    found = match_told(keys, tokens, candidates, shelf_of(keys, held), below=below)
    for each in candidates:
        gpu, cpu, storage, predicted = (
            held.get(each.place + layer, ()) for layer in (Layer.GPU, Layer.CPU, Layer.STORAGE, Layer.PREDICTED)
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
            foreseen = last in predicted and last not in held.get(each.place, ())
            assert match.source is (Source.PREDICTED if foreseen else Source.EVENTS)
        else:
            assert each.slot not in found


def test_an_estimate_is_one():
    keys = keys_of(3)
    shelf = shelf_of(keys, {Layer.ESTIMATED: {0, 1}, LAYERS + Layer.ESTIMATED: {2}, 2 * LAYERS: {0, 1, 2}})
    assert dict(match_estimated(keys, 40, CANDIDATES, shelf)) == {
        10: Match(gpu=32, expected_hit=32, source=Source.ESTIMATED)
    }


def test_only_whole_blocks_of_the_engine_count():
    keys = keys_of(5)
    larger = [Candidate(slot=0, place=0, block_size=48), Candidate(slot=1, place=LAYERS, block_size=0)]
    held = {0: {0, 1, 2, 3, 4}, LAYERS: {0, 1, 2, 3, 4}}
    found = match_told(keys, 80, larger, shelf_of(keys, held))
    assert [(found[slot].gpu, found[slot].expected_hit) for slot in (0, 1)] == [(48, 48), (80, 64)]
    below = {Layer.CPU: {0, 1, 2, 3}, Layer.GPU: {0}}
    match = match_told(keys, 80, larger[:1], shelf_of(keys, below))[0]
    assert (match.gpu, match.cpu) == (16, 32)
