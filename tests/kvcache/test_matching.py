from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.framework import Match, Source
from gateway.kvcache.keys import BlockKeys
from gateway.kvcache.matching import Candidate, match_estimated, match_told

PLACES = 3
masks = st.dictionaries(st.integers(0, 7), st.integers(1, 2**PLACES - 1), max_size=8)
CANDIDATES = [Candidate(slot=10 + place, place=place, block_size=16) for place in range(PLACES)]


def keys_of(count, unit=16):
    return BlockKeys(list(range(count)), unit, count * unit, True)


@given(st.integers(0, 8), masks, masks, masks, masks, st.integers(1, 130))
def test_tiers_add_up_to_the_leading_run(count, gpu, cpu, storage, predicted, tokens):
    found = dict(match_told(keys_of(count), tokens, CANDIDATES, (gpu, cpu, storage), predicted))
    for place in range(PLACES):
        best = []
        for key in range(count):
            on = [masks.get(key, 0) >> place & 1 for masks in (gpu, cpu, storage, predicted)]
            if not any(on):
                break
            best.append("gpu" if on[0] or on[3] else "cpu" if on[1] else "storage")
        match = found.get(10 + place, Match())
        assert (match.gpu, match.cpu, match.storage) == tuple(
            16 * best.count(tier) for tier in ("gpu", "cpu", "storage")
        )
        assert match.expected_hit == min(16 * len(best), (tokens - 1) // 16 * 16)
        if best:
            last = predicted.get(len(best) - 1, 0) >> place & 1
            assert match.source is (Source.PREDICTED if last else Source.EVENTS)
        else:
            assert 10 + place not in found


def test_an_estimate_is_one():
    assert dict(match_estimated(keys_of(3), 40, CANDIDATES, {0: 1, 1: 1, 2: 2})) == {
        10: Match(gpu=32, expected_hit=32, source=Source.ESTIMATED)
    }


def test_only_whole_blocks_of_the_engine_count():
    larger = [Candidate(slot=0, place=0, block_size=48), Candidate(slot=1, place=1, block_size=0)]
    held = dict.fromkeys(range(5), 0b11)
    found = dict(match_told(keys_of(5), 80, larger, (held, {}, {}), {}))
    assert [(found[slot].gpu, found[slot].expected_hit) for slot in (0, 1)] == [(48, 48), (80, 64)]
