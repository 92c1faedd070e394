"""Prefixes that live prompts share are counted once, whatever order they come and go in."""

from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from gateway.flow.live_kv import STRETCH, LiveKv
from gateway.kvcache.index.keys import BlockKeys
from tests.support.candidates import endpoint
from tests.support.examples import examples

UNIT = 16
EVERY = STRETCH // UNIT


def keys(*blocks: int) -> BlockKeys:
    """Of a prompt whose stretches of ``EVERY`` blocks are these numbers: a key depends on all before it."""
    values, before = array("Q"), 0
    for block in blocks:
        before = hash((before, block)) & (1 << 62) - 1
        values.extend([before + number for number in range(EVERY)])
    return BlockKeys(values, UNIT, len(blocks) * STRETCH, True, True)


def test_the_second_of_two_with_one_prefix_takes_only_the_rest():
    live, one = LiveKv(), endpoint()
    assert live.live(one, keys(1, 2, 3)) == 0
    first = live.hold(one, keys(1, 2, 3))
    assert live.live(one, keys(1, 2, 4, 5)) == 2 * STRETCH
    assert live.live(one, keys(4, 1, 2)) == 0
    assert live.saved(one) == 0
    second = live.hold(one, keys(1, 2, 4, 5))
    assert live.saved(one) == 2 * STRETCH
    first.release()
    first.release()
    assert live.saved(one) == 0
    assert live.live(one, keys(1, 2, 3)) == 2 * STRETCH  # the other has them still
    second.release()
    assert live.live(one, keys(1, 2, 3)) == 0


def test_each_endpoint_counts_its_own():
    live, one, other = LiveKv(), endpoint(0), endpoint(1)
    live.hold(one, keys(1, 2))
    live.hold(other, keys(1, 2))
    assert live.saved(one) == live.saved(other) == 0


def test_whoever_gets_the_slot_of_one_that_is_gone_begins_anew():
    live, gone, successor = LiveKv(), endpoint(0), endpoint(0)
    successor.name = "another"
    before = live.hold(gone, keys(1, 2))
    live.hold(gone, keys(1, 2))
    assert live.saved(successor) == live.live(successor, keys(1, 2)) == 0
    live.hold(successor, keys(1, 2))
    before.release()  # of the old one: it changes nothing of the new
    assert live.live(successor, keys(1, 2)) == 2 * STRETCH
    assert live.saved(successor) == 0


def test_a_prompt_shorter_than_what_is_looked_at_shares_nothing():
    live, one = LiveKv(), endpoint()
    short = BlockKeys(array("Q", range(1, EVERY)), UNIT, STRETCH - 1, True, True)
    live.hold(one, short)
    live.hold(one, short)
    assert live.saved(one) == live.live(one, short) == 0


def test_of_blocks_larger_than_a_stretch_each_is_looked_at():
    live, one = LiveKv(), endpoint()
    large = BlockKeys(array("Q", [1, 2, 3]), 512, 1536, True, True)
    live.hold(one, large)
    assert live.live(one, BlockKeys(array("Q", [1, 2, 4]), 512, 1536, True, True)) == 1024
    live.hold(one, large)
    assert live.saved(one) == 1536


PROMPTS = st.lists(st.integers(0, 2), max_size=5)


@given(st.lists(st.tuples(PROMPTS, st.booleans()), max_size=20), st.randoms(use_true_random=False))
@examples(200)
def test_what_is_saved_is_what_a_tree_of_the_prompts_saves(prompts, chance):
    live, one, held = LiveKv(), endpoint(), []
    for prompt, leaves in prompts:
        held.append((prompt, live.hold(one, keys(*prompt))))
        if leaves:
            _, gone = held.pop(chance.randrange(len(held)))
            gone.release()
        whole = [prefix for each, _ in held for prefix in _prefixes(each)]
        assert live.saved(one) == (len(whole) - len(set(whole))) * STRETCH
        for other, _ in prompts:
            expected = sum(prefix in whole for prefix in _prefixes(other))
            assert live.live(one, keys(*other)) == expected * STRETCH
    for _, each in held:
        each.release()
    assert live.saved(one) == 0


def _prefixes(prompt: list[int]) -> list[tuple[int, ...]]:
    return [tuple(prompt[: end + 1]) for end in range(len(prompt))]
