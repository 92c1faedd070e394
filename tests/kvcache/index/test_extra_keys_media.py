"""Prompts with images, as an engine names their blocks in its events, and as a request with the same images asks."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.clock import ManualClock
from gateway.core.observer import NULL_OBSERVER
from gateway.core.prompt import MediaItem, Prompt
from gateway.kvcache.events.decode import decode
from gateway.kvcache.index.cache_index import CacheIndex
from gateway.kvcache.settings import CacheSettings
from simulator.blocks import BlockPool, HashChain
from simulator.blocks import MediaItem as Placed
from simulator.encoding import encode_batch
from tests.kvcache.conftest import endpoint

UNIT = 4


class Rig:
    """An index with one endpoint for each of these block sizes. The first event of each tells its size."""

    def __init__(self, *sizes: int) -> None:
        self.index = CacheIndex(CacheSettings(block_size=UNIT), "m", ManualClock(), NULL_OBSERVER)
        self.sizes = sizes
        for slot in range(len(sizes)):
            self.index.add(endpoint(slot), events=True)
            self.compute(slot, range(1000, 1000 + sizes[slot]), ())

    def compute(self, slot, tokens, media, cuts=(), **seed):
        """The engine computes a prompt, and announces its blocks in runs that end at ``cuts``."""
        size = self.sizes[slot]
        names = HashChain(size, media=media, **seed)
        tokens = array("I", tokens)
        names.extend(tokens)
        pool = BlockPool(len(names.names) + 1, size)
        ends = sorted({cut for cut in cuts if cut < len(names.names)} | {len(names.names)})
        blocks = list(range(1, len(names.names) + 1))
        for start, end in zip([0, *ends], ends, strict=False):
            pool.name(blocks, names, tokens, start, end)
        self.index.apply(slot, decode(encode_batch(1.0, pool.drain(), 0, positional=False, raw_hashes=False)).events)

    def held(self, slot, tokens, media, **seed):
        named = [MediaItem(one.offset, one.identifier) for one in media]
        prompt = Prompt(array("I", tokens), len(tokens), True, media=tuple(named))
        keys = self.index.keys(prompt, seed.get("adapter"), seed.get("salt"))
        return self.index.match(keys, len(tokens) + 1, [endpoint(slot)])[slot].tokens


@st.composite
def prompts(draw):
    """(ids, media): the placeholders of all images are of one id, as engines have them."""
    ids, media = [], []
    for name in draw(st.lists(st.sampled_from(["a", "b", "c"]), max_size=4)):
        ids += draw(st.lists(st.integers(0, 2), max_size=11))
        length = draw(st.integers(1, 13))
        media.append(Placed(len(ids), length, name))
        ids += [9] * length
    return ids + draw(st.lists(st.integers(0, 2), max_size=11)), tuple(media)


seeds = st.sampled_from([{}, {"adapter": "l"}, {"salt": "s"}, {"adapter": "l", "salt": "s"}])


@given(prompts(), st.lists(st.integers(0, 12)), seeds)
def test_what_an_engine_announces_is_what_a_request_finds(prompt, cuts, seed):
    ids, media = prompt
    rig = Rig(UNIT, 2 * UNIT, 3 * UNIT)
    for slot, size in enumerate(rig.sizes):
        rig.compute(slot, ids, media, cuts, **seed)
        assert rig.held(slot, ids, media, **seed) == len(ids) // size * size


@given(prompts(), prompts())
def test_two_prompts_share_what_an_engine_would_share(one, other):
    """The blocks that vLLM's names are equal for, and not one more."""
    rig = Rig(UNIT, 2 * UNIT)
    for slot, size in enumerate(rig.sizes):
        rig.compute(slot, *one)
        left, right = HashChain(size, media=one[1]), HashChain(size, media=other[1])
        left.extend(array("I", one[0]))
        right.extend(array("I", other[0]))
        pairs = zip(left.names, right.names, strict=False)
        shared = next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(left.names), len(right.names)))
        assert rig.held(slot, *other) == shared * size


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 2, 0]])
def test_history_may_come_in_any_order(order):
    ids = [1, 2, 3, *[9] * 9, 4, 5, 6, 7]
    media = (Placed(3, 4, "a"), Placed(7, 5, "b"))
    rig = Rig(UNIT)
    names = HashChain(UNIT, media=media)
    names.extend(array("I", ids))
    for start in order:
        pool = BlockPool(9, UNIT)
        pool.announce(names, array("I", ids), start, start + 1 if start < 2 else 4)
        rig.index.apply(0, decode(encode_batch(1.0, pool.drain(), 0, positional=False, raw_hashes=False)).events)
    assert rig.held(0, ids, media) == 16


def test_a_placement_is_predicted_and_estimated_by_the_same_keys():
    rig = Rig(UNIT)
    rig.index.add(endpoint(1), events=False)
    ids, media = [1, 2, *[9] * 8, 4, 5], [MediaItem(2, "a")]
    keys = rig.index.keys(Prompt(array("I", ids), len(ids), True, media=tuple(media)))
    for slot in (0, 1):
        rig.index.placed(keys, endpoint(slot))
        assert rig.held(slot, ids, [Placed(2, 8, "a")]) == 12
        assert rig.held(slot, ids, [Placed(2, 8, "b")]) == 0
