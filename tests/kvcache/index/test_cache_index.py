"""Covers: gateway/kvcache/index/cache_index.py, gateway/kvcache/index/indexed_endpoints.py,
gateway/kvcache/index/reported_endpoints.py, gateway/kvcache/index/endpoint_state.py,
gateway/kvcache/index/size_limit.py, gateway/kvcache/index/cache_room.py, gateway/kvcache/index/use.py,
gateway/kvcache/index/block_events.py."""

from __future__ import annotations

from array import array

import pytest

from gateway.core.clock import ManualClock
from gateway.core.prompt import Prompt
from gateway.framework import NO_MATCH
from gateway.framework.match import Match, Source
from gateway.kvcache.index.block_events import BlockStored
from gateway.kvcache.index.hash_map import Packing
from gateway.kvcache.settings import CacheSettings
from tests.kvcache.conftest import CLEARED, Index, Tally, endpoint, ids, index_of, look, removed, stored, tokens_held

# events


def test_a_match_is_the_leading_blocks_that_are_held():
    index = index_of(3)
    index.apply_one(0, stored([11, 12], ids(1, 2)))
    index.apply_one(1, stored([91, 92, 93], ids(1, 2, 3)))
    prompt = ids(1, 2, 3) + array("I", [9])
    matches = index.match(index.keys(Prompt(prompt, 49, True)), 49, [endpoint(slot) for slot in range(3)])
    assert matches[0] == Match(gpu=32, expected_hit=32, source=Source.EVENTS)
    assert matches[1] == Match(gpu=48, expected_hit=48, source=Source.EVENTS)
    assert matches[2] is NO_MATCH
    assert index.blocks == 3


def test_an_endpoint_whose_tokens_differ_is_matched_by_what_was_sent_there():
    index = index_of(2)
    index.apply_one(0, stored([11, 12], ids(1, 2)))
    index.apply_one(1, stored([91, 92], ids(1, 2)))
    keys = index.keys(Prompt(ids(1, 2), 33, True, differing=frozenset([endpoint(1).name])))
    matches = index.match(keys, 33, [endpoint(slot) for slot in range(2)])
    assert matches[0].source is Source.EVENTS
    assert matches[1] is NO_MATCH, "its events speak of other tokens"
    assert not index.covers(1, keys)
    index.placed(keys, endpoint(1))
    assert index.match(keys, 33, [endpoint(1)])[1] == Match(gpu=32, expected_hit=32, source=Source.ESTIMATED)


def test_what_was_asked_for_once_more_adds_no_copies():
    index = index_of()
    index.apply_one(0, stored([11, 12], ids(1, 2)))
    index.expect_report(0, index.keys(Prompt(ids(1, 2), 33, True)))
    index.expect_report(7, index.keys(Prompt(ids(1, 2), 33, True)))
    index.apply_one(0, stored([11, 12], ids(1, 2)))
    index.apply_one(0, removed(12))
    assert tokens_held(index, 0, ids(1, 2)) == 16
    index.apply_one(0, stored([11], ids(1)))  # nobody asked for this one
    index.apply_one(0, removed(11))
    assert tokens_held(index, 0, ids(1, 2)) == 16


def test_a_report_that_will_not_come_swallows_no_copy():
    index = index_of()
    keys = index.keys(Prompt(ids(1, 2), 33, True))
    index.apply_one(0, stored([11, 12], ids(1, 2)))
    index.expect_report(0, keys)
    index.cancel_report(0, keys)
    index.cancel_report(0, keys)  # it has come already
    index.cancel_report(7, keys)
    index.apply_one(0, stored([11], ids(1)))
    index.apply_one(0, removed(11))
    assert tokens_held(index, 0, ids(1, 2)) == 32


def test_an_answer_that_tells_what_was_not_known_is_an_answer():
    """The next announcement of the prompt is the engine's own, and counts."""
    index = index_of()
    index.expect_report(0, index.keys(Prompt(ids(1, 2), 33, True), "lora", "salt"))
    told = stored([11, 12], ids(1, 2), lora_name="lora", extra_keys=[["lora", "salt"], ["lora"]])
    index.apply_one(0, told)
    assert tokens_held(index, 0, ids(1, 2), adapter="lora", salt="salt") == 32
    index.apply_one(0, told)
    index.apply_one(0, removed(11))
    assert tokens_held(index, 0, ids(1, 2), adapter="lora", salt="salt") == 32


def test_so_many_prompts_ask_where_the_past_is_not_known():
    index = index_of(2, reannounce=2)
    keys = index.keys(Prompt(ids(1), 17, True))
    assert not index.claim_reannounce(0, keys)
    assert not index.may_reannounce(0)
    index.set_partial(0)
    assert [(index.may_reannounce(0), index.claim_reannounce(0, keys)) for _ in range(3)] == [
        (True, True),
        (True, True),
        (False, False),
    ]
    assert not index.may_reannounce(7)
    assert not index.claim_reannounce(1, keys)
    assert not index.claim_reannounce(7, keys)
    index.set_partial(0)
    assert not index.claim_reannounce(0, index.keys(Prompt(ids(1), 17, False))), "what is estimated tells nothing"
    assert not index.claim_reannounce(0, index.keys(Prompt(ids(1)[:9], 9, True))), "nothing of it can be held"
    index.set_complete(0)
    assert not index.claim_reannounce(0, keys)


def test_what_is_to_be_asked_survives_that_a_block_size_is_learned():
    index = index_of(2, reannounce=1)
    index.set_partial(0)
    index.apply_one(1, stored([11], ids(1, 1)))
    assert index.unit == 32
    assert index.claim_reannounce(0, index.keys(Prompt(ids(1, 1), 33, True)))


def test_the_last_token_is_always_computed():
    index = index_of()
    index.apply_one(0, stored([11, 12], ids(1, 2)))
    assert look(index, ids(1, 2)) == Match(gpu=32, expected_hit=16, source=Source.EVENTS)
    assert look(index, ids(1, 2), count=33).expected_hit == 32


def test_adapters_and_salts_do_not_share():
    index = index_of()
    index.apply_one(0, stored([11], ids(1), extra_keys=[["s"]]))
    assert look(index, ids(1), salt="s").tokens == 16
    assert look(index, ids(1)).tokens == look(index, ids(1), adapter="s").tokens == 0


def test_only_the_endpoints_that_are_asked_for_are_matched():
    index = index_of(2)
    index.apply_one(0, stored([11], ids(1)))
    keys = index.keys(Prompt(ids(1), 16, True))
    assert index.match(keys, 16, [endpoint(1), endpoint(7)]) == {}


def test_tiers_are_told_apart():
    index = index_of()
    index.apply_one(0, stored([11, 12, 13, 14], ids(1, 2, 3, 4)))
    index.apply_one(0, BlockStored(block_hashes=[12, 13, 14], medium="CPU"))
    index.apply_one(0, BlockStored(block_hashes=[14], medium="STORAGE"))
    index.apply_one(0, removed(12, 14))
    index.apply_one(0, removed(14, medium="CPU"))
    assert look(index, ids(1, 2, 3, 4, 5)) == Match(32, 16, 16, 64, Source.EVENTS)
    index.apply_one(0, CLEARED)
    assert look(index, ids(1, 2, 3, 4, 5)) == NO_MATCH
    index.apply_one(0, stored([11], ids(1)))
    assert look(index, ids(1, 2, 3, 4, 5)) == Match(16, 32, 16, 64, Source.EVENTS)


def test_a_reset_is_for_one_endpoint():
    index = index_of(2)
    for slot in (0, 1):
        index.apply_one(slot, stored([11], ids(1)))
    index.apply_one(0, CLEARED)
    assert [tokens_held(index, slot, ids(1)) for slot in (0, 1)] == [0, 16]
    index.apply_one(0, stored([11], ids(1)))
    index.apply_one(0, removed(11))
    assert tokens_held(index, 0, ids(1)) == 0


def tiered(hashes=range(10, 210)):
    """An index with one endpoint that has blocks on the GPU and on the CPU, and their prompt."""
    index, prompt = index_of(), ids(*hashes)
    index.apply_one(0, stored(hashes, prompt))
    index.apply_one(0, BlockStored(block_hashes=list(hashes), medium="CPU"))
    return index, prompt


@pytest.mark.parametrize("steps", [0, 50])
@pytest.mark.parametrize("closed", [False, True])
def test_a_reset_that_is_interrupted_leaves_nothing_for_who_comes_next(steps, closed):
    index, prompt = tiered()
    index.placed(index.keys(Prompt(prompt, len(prompt), True)), endpoint(0))
    work = index.reset_gpu(0)
    for _ in range(steps):
        next(work)
    index.clear(0)
    if closed:
        work.close()
    assert list(work) == []
    while not index.sweep(7):
        pass
    assert index.blocks == 0
    index.add(endpoint(1), True)
    index.apply_one(1, stored(range(1000, 1064), prompt[: 64 * 16]))
    assert tokens_held(index, 1, prompt) == 64 * 16


@pytest.mark.parametrize("steps", [0, 1, 30, 99, 100])
def test_an_endpoint_after_one_whose_reset_was_interrupted_holds_nothing(steps):
    """Of a large index, in which hashes are packed."""
    index = Index(CacheSettings(), "m", ManualClock(), Tally(), Packing(above=0, least=0, most=0, batch=1))
    index.add(endpoint(0), True)
    numbers = range(10, 110)
    for number in numbers:
        index.apply_one(0, stored([number * 2**40], ids(number)))
    index.apply_one(0, BlockStored(block_hashes=[10 * 2**40], medium="CPU"))
    work = index.reset_gpu(0)
    for _ in range(steps):
        next(work)
    index.remove(0)
    while not index.sweep(7):
        pass
    index.add(endpoint(1), True)
    index.set_complete(1)
    assert index._states[1].column == 0, "the same column"
    assert [tokens_held(index, 1, ids(number)) for number in numbers] == [0] * len(numbers)
    assert index.blocks == 0


def test_a_reset_is_worked_through_before_anything_else_is_applied():
    index, prompt = tiered()
    work = index.reset_gpu(0)
    for _ in range(50):
        next(work)
    index.apply_one(0, removed(159, medium="CPU"))
    index.apply_one(0, stored([160], ids(160), parent=159))
    assert list(work) == []
    assert look(index, prompt) == Match(cpu=149 * 16, expected_hit=149 * 16, source=Source.EVENTS)
    index.apply_one(0, removed(*range(10, 210), medium="CPU"))
    index.apply_one(0, removed(160))
    assert index.blocks == 0


def test_a_reset_ends_one_that_was_not_worked_through():
    index, prompt = tiered()
    next(index.reset_gpu(0))
    for _ in index.reset_gpu(0):
        pass
    assert look(index, prompt).cpu == len(prompt)
    index.remove(0)
    assert index.sweep(1000)
    assert index.blocks == 0


def test_what_is_told_of_a_reset_is_told_at_its_end(tally):
    index = index_of(tally=tally)
    index.apply_one(0, stored([10, 11], ids(10, 11)))
    index.apply_one(0, BlockStored(block_hashes=[10], medium="CPU"))
    for _ in index.reset_gpu(0):
        assert not tally.events["cleared"]
    assert tally.events["cleared"] == 1


def test_what_happened_is_told_once_a_message(tally):
    index = index_of(tally=tally)
    index.apply_one(0, stored([11, 12], ids(1, 2)))
    index.apply_one(0, removed(11))
    index.apply_one(0, removed(77))
    index.apply_one(0, stored([19], ids(9), kv_cache_spec_kind="mamba"))
    index.apply_one(5, stored([19], ids(9)))
    assert not tally.events
    index.report_counts(0)
    index.report_counts(5)
    assert tally.events == {"stored": 2, "removed": 2, "unknown-hash": 1, "other-group": 1}
    assert tally.blocks == 2  # nobody holds the first any more, but the second is behind it
    index.report_counts(0)
    assert tally.events.total() == 6
    index.apply_one(0, CLEARED)
    assert tally.events["cleared"] == 1


# endpoints come and go


def test_a_forgotten_endpoint_holds_nothing_at_once():
    index = index_of(2)
    for slot in (0, 1):
        index.apply_one(slot, stored([11, 12, 13], ids(1, 2, 3)))
    index.placed(index.keys(Prompt(ids(5), 16, True)), endpoint(0))
    index.placed(index.keys(Prompt(ids(5), 16, False)), endpoint(0))
    index.clear(0)
    assert look(index, ids(1, 2, 3)) == look(index, ids(5)) == look(index, ids(5), exact=False) == NO_MATCH
    index.apply_one(0, stored([11], ids(1)))
    assert look(index, ids(1, 2, 3)).tokens == 16
    while not index.sweep(1):
        pass
    assert [tokens_held(index, slot, ids(1, 2, 3)) for slot in (0, 1)] == [16, 48]
    assert index.blocks == 3


def test_a_dropped_endpoint_is_cleared_in_slices():
    index = index_of(2)
    index.apply_one(0, stored(range(10, 20), ids(*range(10))))
    index.remove(0)
    assert look(index, ids(*range(10))) == NO_MATCH
    assert not index.sweep(9)
    assert index.sweep(9)
    assert index.blocks == 0
    assert index.sweep(9)
    # Whatever comes late for it is ignored.
    index.apply_one(0, stored([11], ids(1)))
    index.apply_one(0, removed(11))
    index.apply_one(0, CLEARED)
    for late in (index.clear, index.remove, index.set_complete, index.report_counts):
        late(0)
    index.set_events(0, True)
    index.placed(index.keys(Prompt(ids(1), 16, True)), endpoint(0))
    assert index.blocks == 0


def test_a_slot_is_used_again():
    index = index_of(2)
    index.apply_one(0, stored([11], ids(1)))
    index.remove(0)
    index.add(endpoint(0), True)
    assert look(index, ids(1)) == NO_MATCH
    index.sweep(100)
    index.apply_one(0, stored([12], ids(2)))
    assert (look(index, ids(1)), look(index, ids(2)).tokens) == (NO_MATCH, 16)


def test_events_and_requests_clear_what_was_forgotten():
    index = index_of(2)
    index.apply_one(0, stored(range(10, 110), ids(*range(100))))
    index.clear(0)
    index.apply_one(1, stored([1], ids(1)))
    assert 0 < index.blocks < 100
    index.placed(index.keys(Prompt(ids(1), 16, True)), endpoint(1))
    assert index.blocks == 1


def test_switching_events_on_or_off_begins_anew():
    index = index_of(events=False)
    index.placed(index.keys(Prompt(ids(1), 16, True)), endpoint(0))
    index.set_events(0, False)
    assert look(index, ids(1)).tokens == 16
    index.set_events(0, True)
    assert look(index, ids(1)) == NO_MATCH
    index.apply_one(0, stored([11], ids(1)))
    index.set_events(0, False)
    assert look(index, ids(1)) == NO_MATCH
