from __future__ import annotations

from array import array
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gateway.framework import NO_MATCH, Match, Source
from gateway.kvcache.events import BlockStored, decode
from gateway.kvcache.index import CacheIndex
from gateway.kvcache.layers import LAYERS
from gateway.kvcache.settings import CacheSettings
from tests.kvcache.conftest import (
    CLEARED,
    END,
    ManualClock,
    Tally,
    captured,
    endpoint,
    ids,
    removed,
    stored,
    tokens_held,
)


def index_of(slots=1, events=True, clock=None, tally=None, **limits):
    index = CacheIndex(CacheSettings(**limits), "m", clock or ManualClock(), tally or Tally())
    for slot in range(slots):
        index.add(endpoint(slot), events)
    return index


def look(index, prompt, slot=0, count=None, exact=True, adapter=None, salt=None):
    keys = index.keys(prompt, count or len(prompt), exact, adapter, salt)
    return index.match(keys, count or len(prompt), [endpoint(slot)])[slot]


# events


def test_a_match_is_the_leading_blocks_that_are_held():
    index = index_of(3)
    index.apply(0, stored([11, 12], ids(1, 2)))
    index.apply(1, stored([91, 92, 93], ids(1, 2, 3)))
    prompt = ids(1, 2, 3) + array("I", [9])
    matches = index.match(index.keys(prompt, 49, True, None, None), 49, [endpoint(slot) for slot in range(3)])
    assert matches[0] == Match(gpu=32, expected_hit=32, source=Source.EVENTS)
    assert matches[1] == Match(gpu=48, expected_hit=48, source=Source.EVENTS)
    assert matches[2] is NO_MATCH
    assert index.blocks == 3


def test_what_was_asked_for_once_more_adds_no_copies():
    index = index_of()
    index.apply(0, stored([11, 12], ids(1, 2)))
    index.reannounced(0, index.keys(ids(1, 2), 33, True, None, None))
    index.reannounced(7, index.keys(ids(1, 2), 33, True, None, None))
    index.apply(0, stored([11, 12], ids(1, 2)))
    index.apply(0, removed(12))
    assert tokens_held(index, 0, ids(1, 2)) == 16
    index.apply(0, stored([11], ids(1)))  # nobody asked for this one
    index.apply(0, removed(11))
    assert tokens_held(index, 0, ids(1, 2)) == 16


def test_an_answer_that_tells_what_was_not_known_is_an_answer():
    """The next announcement of the prompt is the engine's own, and counts."""
    index = index_of()
    index.reannounced(0, index.keys(ids(1, 2), 33, True, "lora", "salt"))
    told = stored([11, 12], ids(1, 2), lora_name="lora", extra_keys=[["lora", "salt"], ["lora"]])
    index.apply(0, told)
    assert tokens_held(index, 0, ids(1, 2), adapter="lora", salt="salt") == 32
    index.apply(0, told)
    index.apply(0, removed(11))
    assert tokens_held(index, 0, ids(1, 2), adapter="lora", salt="salt") == 32


def test_so_many_prompts_ask_where_the_past_is_not_known():
    index = index_of(2, reannounce=2)
    keys = index.keys(ids(1), 17, True, None, None)
    assert not index.asks(0, keys)
    index.unknown_past(0)
    assert [index.asks(0, keys) for _ in range(3)] == [True, True, False]
    assert not index.asks(1, keys)
    assert not index.asks(7, keys)
    index.unknown_past(0)
    assert not index.asks(0, index.keys(ids(1), 17, False, None, None)), "what is estimated tells nothing"
    assert not index.asks(0, index.keys(ids(1)[:9], 9, True, None, None)), "nothing of it can be held"
    index.believe(0)
    assert not index.asks(0, keys)


def test_what_is_to_be_asked_survives_that_a_block_size_is_learned():
    index = index_of(2, reannounce=1)
    index.unknown_past(0)
    index.apply(1, stored([11], ids(1, 1)))
    assert index.unit == 32
    assert index.asks(0, index.keys(ids(1, 1), 33, True, None, None))


def test_the_last_token_is_always_computed():
    index = index_of()
    index.apply(0, stored([11, 12], ids(1, 2)))
    assert look(index, ids(1, 2)) == Match(gpu=32, expected_hit=16, source=Source.EVENTS)
    assert look(index, ids(1, 2), count=33).expected_hit == 32


def test_adapters_and_salts_do_not_share():
    index = index_of()
    index.apply(0, stored([11], ids(1), extra_keys=[["s"]]))
    assert look(index, ids(1), salt="s").tokens == 16
    assert look(index, ids(1)).tokens == look(index, ids(1), adapter="s").tokens == 0


def test_only_the_endpoints_that_are_asked_for_are_matched():
    index = index_of(2)
    index.apply(0, stored([11], ids(1)))
    keys = index.keys(ids(1), 16, True, None, None)
    assert index.match(keys, 16, [endpoint(1), endpoint(7)]) == {}


def test_tiers_are_told_apart():
    index = index_of()
    index.apply(0, stored([11, 12, 13, 14], ids(1, 2, 3, 4)))
    index.apply(0, BlockStored(block_hashes=[12, 13, 14], medium="CPU"))
    index.apply(0, BlockStored(block_hashes=[14], medium="STORAGE"))
    index.apply(0, removed(12, 14))
    index.apply(0, removed(14, medium="CPU"))
    assert look(index, ids(1, 2, 3, 4, 5)) == Match(32, 16, 16, 64, Source.EVENTS)
    index.apply(0, CLEARED)
    assert look(index, ids(1, 2, 3, 4, 5)) == NO_MATCH
    index.apply(0, stored([11], ids(1)))
    assert look(index, ids(1, 2, 3, 4, 5)) == Match(16, 32, 16, 64, Source.EVENTS)


def test_a_reset_is_for_one_endpoint():
    index = index_of(2)
    for slot in (0, 1):
        index.apply(slot, stored([11], ids(1)))
    index.apply(0, CLEARED)
    assert [tokens_held(index, slot, ids(1)) for slot in (0, 1)] == [0, 16]
    index.apply(0, stored([11], ids(1)))
    index.apply(0, removed(11))
    assert tokens_held(index, 0, ids(1)) == 0


def test_what_happened_is_told_once_a_message(tally):
    index = index_of(tally=tally)
    index.apply(0, stored([11, 12], ids(1, 2)))
    index.apply(0, removed(11))
    index.apply(0, removed(77))
    index.apply(0, stored([19], ids(9), kv_cache_spec_kind="mamba"))
    index.apply(5, stored([19], ids(9)))
    assert not tally.events
    index.tell(0)
    index.tell(5)
    assert tally.events == {"stored": 2, "removed": 2, "unknown-hash": 1, "other-group": 1}
    assert tally.blocks == 2  # nobody holds the first any more, but the second is behind it
    index.tell(0)
    assert tally.events.total() == 6
    index.apply(0, CLEARED)
    assert tally.events["cleared"] == 1


# predictions and evidence


def test_a_placement_is_predicted_until_events_tell(clock):
    index = index_of(2, clock=clock)
    index.apply(0, stored([19], ids(9)))
    keys = index.keys(ids(1, 2, 3), 48, True, None, None)
    index.placed(keys, endpoint(0))
    assert look(index, ids(1, 2, 3), count=49) == Match(gpu=48, expected_hit=48, source=Source.PREDICTED)
    index.apply(0, stored([11, 12, 13], ids(1, 2, 3)))
    assert look(index, ids(1, 2, 3), count=49).source is Source.EVENTS
    clock.now += 100
    assert look(index, ids(1, 2, 3), count=49).tokens == 48
    index.apply(0, removed(13))
    assert look(index, ids(1, 2, 3), count=49).tokens == 32


def test_a_prediction_that_does_not_come_true_lapses(clock):
    index = index_of(clock=clock, prediction_seconds=2)
    index.believe(0)
    index.placed(index.keys(ids(1), 16, True, None, None), endpoint(0))
    assert look(index, ids(1)).source is Source.PREDICTED
    clock.now += 2
    assert look(index, ids(1)) == NO_MATCH


def test_a_held_block_that_is_evicted_was_not_predicted():
    index = index_of()
    index.apply(0, stored([11, 12], ids(1, 2)))
    index.placed(index.keys(ids(1, 2), 32, True, None, None), endpoint(0))
    index.apply(0, removed(12))
    assert look(index, ids(1, 2)).tokens == 16


def test_what_the_engine_reports_ends_a_wrong_prediction():
    index = index_of()
    index.believe(0)
    keys = index.keys(ids(1, 2, 3), 49, True, None, None)
    index.placed(keys, endpoint(0))
    index.settled(keys, endpoint(0), expected=48, reported=48)
    index.settled(keys, endpoint(0), expected=48, reported=None)
    index.settled(keys, endpoint(3), expected=48, reported=0)
    assert look(index, ids(1, 2, 3)).tokens == 48
    index.settled(keys, endpoint(0), expected=48, reported=16)
    assert look(index, ids(1, 2, 3)).tokens == 16


def test_what_the_engine_reports_mends_a_count_of_copies():
    index = index_of()
    index.apply(0, stored([11, 12], ids(1, 2)))
    index.apply(0, stored([11, 12], ids(1, 2)))  # a report of what is held, no copies
    index.apply(0, removed(12))
    keys = index.keys(ids(1, 2), 33, True, None, None)
    assert look(index, ids(1, 2), count=33).expected_hit == 32
    index.apply(0, stored([12], ids(2), parent=11))  # computed again
    index.settled(keys, endpoint(0), expected=32, reported=16)
    index.apply(0, removed(12))
    assert look(index, ids(1, 2), count=33).expected_hit == 16


# estimates


def test_where_no_events_come_what_was_sent_there_counts():
    index = index_of(2, events=False)
    index.placed(index.keys(ids(1, 2), 33, True, None, None), endpoint(0))
    assert look(index, ids(1, 2, 3), count=49) == Match(gpu=32, expected_hit=32, source=Source.ESTIMATED)
    assert look(index, ids(1, 2, 3), slot=1) == NO_MATCH


def test_an_estimate_has_the_capacity_that_the_engine_reports():
    index = index_of(events=False)
    for number in range(5):
        index.placed(index.keys(ids(number), 17, True, None, None), endpoint(0, capacity=48))
    assert [look(index, ids(number), count=17).tokens for number in range(5)] == [0, 0, 16, 16, 16]
    index = index_of(events=False, capacity_tokens=32)
    for number in range(3):
        index.placed(index.keys(ids(number), 17, True, None, None), endpoint(0))
    assert [look(index, ids(number), count=17).tokens for number in range(3)] == [0, 16, 16]


def test_an_endpoint_whose_events_do_not_come_is_estimated():
    index = index_of()
    index.placed(index.keys(ids(1), 17, True, None, None), endpoint(0))
    assert look(index, ids(1), count=17).source is Source.ESTIMATED
    index.apply(0, stored([19], ids(9)))
    assert look(index, ids(1), count=17).source is Source.PREDICTED


def test_an_estimated_prompt_is_estimated_everywhere():
    index = index_of()
    index.apply(0, stored([11], ids(1)))
    assert look(index, ids(1), count=17, exact=False) == NO_MATCH
    index.placed(index.keys(ids(1), 17, False, None, None), endpoint(0))
    assert look(index, ids(1), count=17, exact=False).source is Source.ESTIMATED
    index.settled(index.keys(ids(1), 17, False, None, None), endpoint(0), 16, 0)
    assert look(index, ids(1), count=17, exact=False).tokens == 16


# endpoints come and go


def test_a_forgotten_endpoint_holds_nothing_at_once():
    index = index_of(2)
    for slot in (0, 1):
        index.apply(slot, stored([11, 12, 13], ids(1, 2, 3)))
    index.placed(index.keys(ids(5), 16, True, None, None), endpoint(0))
    index.placed(index.keys(ids(5), 16, False, None, None), endpoint(0))
    index.forget(0)
    assert look(index, ids(1, 2, 3)) == look(index, ids(5)) == look(index, ids(5), exact=False) == NO_MATCH
    index.apply(0, stored([11], ids(1)))
    assert look(index, ids(1, 2, 3)).tokens == 16
    while not index.sweep(1):
        pass
    assert [tokens_held(index, slot, ids(1, 2, 3)) for slot in (0, 1)] == [16, 48]
    assert index.blocks == 3


def test_a_dropped_endpoint_is_cleared_in_slices():
    index = index_of(2)
    index.apply(0, stored(range(10, 20), ids(*range(10))))
    index.drop(0)
    assert look(index, ids(*range(10))) == NO_MATCH
    assert not index.sweep(9)
    assert index.sweep(9)
    assert index.blocks == 0
    assert index.sweep(9)
    # Whatever comes late for it is ignored.
    index.apply(0, stored([11], ids(1)))
    index.apply(0, removed(11))
    index.apply(0, CLEARED)
    for late in (index.forget, index.drop, index.believe, index.tell):
        late(0)
    index.set_events(0, True)
    index.placed(index.keys(ids(1), 16, True, None, None), endpoint(0))
    assert index.blocks == 0


def test_a_slot_is_used_again():
    index = index_of(2)
    index.apply(0, stored([11], ids(1)))
    index.drop(0)
    index.add(endpoint(0), True)
    assert look(index, ids(1)) == NO_MATCH
    index.sweep(100)
    index.apply(0, stored([12], ids(2)))
    assert (look(index, ids(1)), look(index, ids(2)).tokens) == (NO_MATCH, 16)


def test_events_and_requests_clear_what_was_forgotten():
    index = index_of(2)
    index.apply(0, stored(range(10, 110), ids(*range(100))))
    index.forget(0)
    index.apply(1, stored([1], ids(1)))
    assert 0 < index.blocks < 100
    index.placed(index.keys(ids(1), 16, True, None, None), endpoint(1))
    assert index.blocks == 1


def test_switching_events_on_or_off_begins_anew():
    index = index_of(events=False)
    index.placed(index.keys(ids(1), 16, True, None, None), endpoint(0))
    index.set_events(0, False)
    assert look(index, ids(1)).tokens == 16
    index.set_events(0, True)
    assert look(index, ids(1)) == NO_MATCH
    index.apply(0, stored([11], ids(1)))
    index.set_events(0, False)
    assert look(index, ids(1)) == NO_MATCH


# the unit


def test_the_first_engine_sets_the_unit():
    index = index_of()
    early = index.keys(ids(1, 2), 32, True, None, None)
    index.apply(0, stored([11], ids(1, 2)))
    assert index.unit == 32
    assert look(index, ids(1, 2, 3, 4)) == Match(gpu=32, expected_hit=32, source=Source.EVENTS)
    # A request that waited meanwhile has keys of another unit.
    assert index.match(early, 32, [endpoint(0)]) == {}
    index.placed(early, endpoint(0))
    index.settled(early, endpoint(0), 32, 0)
    assert look(index, ids(1, 2, 3, 4)).tokens == 32


def test_the_unit_can_be_learned_from_a_scrape():
    index = CacheIndex(CacheSettings(), "m", ManualClock(), Tally())
    index.add(endpoint(0, block_size=128), False)
    assert index.keys(ids(*range(8)), 128, True, None, None).unit == index.unit == 128


def test_engines_with_multiples_share_the_index():
    index = index_of(2)
    index.apply(0, stored([11, 12, 13], ids(1, 2, 3)))
    index.apply(1, stored([21], ids(1, 2)))
    assert index.unit == 16
    assert [tokens_held(index, slot, ids(1, 2, 3)) for slot in (0, 1)] == [48, 32]
    # A larger block counts when it is whole, and half of one is held by nobody.
    index.apply(1, stored([22], ids(3, 4), parent=21))
    assert look(index, ids(1, 2, 3), slot=1).tokens == 32
    assert look(index, ids(1, 2, 3, 4), slot=1) == Match(gpu=64, expected_hit=32, source=Source.EVENTS)


def test_an_engine_with_another_size_makes_the_unit_smaller():
    index = index_of(2)
    replays = []
    index.on_new_unit = lambda: replays.append(index.unit)
    index.apply(0, stored([11], ids(1, 2, 3)))
    assert (index.unit, replays) == (48, [])
    index.apply(1, stored([21], ids(1, 2)))
    assert (index.unit, replays) == (16, [16])
    assert [tokens_held(index, slot, ids(1, 2, 3)) for slot in (0, 1)] == [0, 0]
    index.apply(0, stored([11], ids(1, 2, 3)))
    index.apply(1, stored([21], ids(1, 2)))
    assert [tokens_held(index, slot, ids(1, 2, 3)) for slot in (0, 1)] == [48, 32]


def test_a_size_that_does_not_fit_is_refused(tally):
    index = index_of(tally=tally)
    index.apply(0, stored([10], ids(0), kv_cache_spec_kind="sliding_window"))
    index.apply(0, BlockStored(block_hashes=[10], medium="CPU"))
    index.apply(0, stored([11], ids(1)))
    index.apply(0, stored([12], ids(1, size=7)))
    index.tell(0)
    assert (index.unit, tally.events["block-size"]) == (16, 1)
    assert tokens_held(index, 0, ids(1)) == 16


# the bound


def test_the_index_is_bounded_and_keeps_what_is_used():
    index = index_of(2, max_blocks=100)
    index.apply(0, stored([1], ids(1000)))
    for number in range(300):
        index.placed(index.keys(ids(1000), 17, True, None, None), endpoint(0))
        index.apply(number % 2, stored([10 + number], ids(number)))
        assert index.blocks <= 100
    assert look(index, ids(1000), count=17).tokens == 16
    assert look(index, ids(0), count=17).tokens == 0
    assert look(index, ids(299), slot=1, count=17).tokens == 16


def test_the_bound_is_of_the_whole_index():
    index = index_of(4, max_blocks=10)
    for slot in range(4):
        index.apply(slot, stored(range(8), ids(*range(8))))
    assert sum(len(holder.holdings) for holder in index._holders.values()) <= 10


# what vLLM really sends


@pytest.mark.parametrize(
    ("name", "blocks", "said"),
    [
        ("a_replay_from0", 6, {"stored": 17, "cleared": 2}),
        ("a_sha256", 6, {"stored": 6, "cleared": 1}),
        ("u_bytes_noseed", 49, {"stored": 49}),
        ("pd_decode", 20, {"stored": 20}),
        ("pd_prefill", 0, {"stored": 18, "orphan": 17}),  # it begins with message 4: nothing has a known parent
    ],
)
def test_captures_leave_the_index_as_the_engine_was(name, blocks, said, tally):
    index = index_of(tally=tally)
    last = {}
    for frames in captured(f"{name}.bin"):
        if frames[-2] != END:
            for event in decode(frames[-1]).events:
                index.apply(0, event)
                if isinstance(event, BlockStored) and event.parent_block_hash is None:
                    last[tuple(event.token_ids)] = (event.extra_keys or [None])[0]
            index.tell(0)
    assert (index.unit, index.blocks) == (32, blocks)
    assert tally.events == said
    for prompt, extra in last.items():
        keys = index.keys(array("I", prompt), len(prompt), True, None, extra[0] if extra else None)
        assert index.match(keys, len(prompt), [endpoint(0)])[0].tokens == len(prompt)


def test_a_capture_is_replayed_twice_the_same(tally):
    """Live messages after a replay are the tail of it: the same engine, the same index."""
    index = index_of(2, tally=tally)
    for slot, name in enumerate(("a_replay_from0.bin", "a_sha256.bin")):
        for frames in captured(name):
            if frames[-2] != END:
                for event in decode(frames[-1]).events:
                    index.apply(slot, event)
    assert {(stretch.full, stretch.part is None) for stretch in index._shelf.heads.values()} == {
        (1 | 1 << LAYERS, True)
    }


# against a naive model

UNIT = 4
SIZES = (4, 8, 4, 12)
CAPACITY = 40
"""Tokens of an estimate."""


def test_a_reset_in_the_past_does_not_end_the_reading_of_it():
    machine = Naive()
    machine.begin()
    machine.read(0, True)
    machine.reset_slowly(0, 0, [0])
    machine.store(0, [0])
    machine.ask([0])


class Naive(RuleBasedStateMachine):
    """Engines as dictionaries of what they hold on each tier, copies counted; prompts of few different blocks."""

    prompts = st.one_of(
        st.lists(st.integers(0, 2), min_size=1, max_size=9),
        st.builds(lambda first, length: [first] * length, st.integers(0, 2), st.integers(60, 140)),
    )
    engines = st.integers(0, len(SIZES) - 1)
    below = st.sampled_from(["CPU", "STORAGE"])
    whole = True
    """Nothing is forgotten for want of room."""
    max_blocks = 100_000

    @initialize()
    def begin(self):
        self.clock = ManualClock()
        settings = CacheSettings(block_size=UNIT, max_blocks=self.max_blocks)
        self.index = CacheIndex(settings, "m", self.clock, Tally())
        self.index.on_new_unit = self.begin_anew
        self.held = [{tier: Counter() for tier in ("GPU", "CPU", "STORAGE")} for _ in SIZES]
        self.waiting = [Counter() for _ in SIZES]
        self.reading = [False for _ in SIZES]
        for slot in range(len(SIZES)):
            self.index.add(endpoint(slot), True)
        self.store(0, [0])
        for slot in range(len(SIZES)):
            self.index.believe(slot)

    def begin_anew(self):
        """The unit became smaller: what streams do then is to read everything again, which these engines have not."""
        for slot in range(len(SIZES)):
            self.index.forget(slot)
            self.empty(slot)

    def empty(self, slot):
        for tier in self.held[slot].values():
            tier.clear()

    def blocks(self, slot, prompt):
        """Every whole block of ``prompt`` on the engine, each as all tokens up to its end."""
        tokens = [number for number in prompt for _ in range(UNIT)]
        size = SIZES[slot]
        return [tuple(tokens[:end]) for end in range(size, len(tokens) + 1, size)]

    def name(self, slot, block):
        return None if not block else hash((slot, block)) & (2**64 - 1)

    def run(self, slot, blocks):
        size = SIZES[slot]
        tokens = [token for block in blocks for token in block[-size:]]
        return stored([self.name(slot, block) for block in blocks], tokens, parent=self.name(slot, blocks[0][:-size]))

    def known(self, slot, block):
        return not block or any(tier[block] for tier in self.held[slot].values())

    @rule(slot=engines, prompt=prompts)
    def store(self, slot, prompt):
        """A request computes what is not held behind its hit, as vLLM announces it."""
        blocks = self.blocks(slot, prompt)
        hit = 0
        while hit < len(blocks) and self.held[slot]["GPU"][blocks[hit]]:
            hit += 1
        new = blocks[hit:] or blocks[-1:]  # a prompt that is held whole has its last block computed again
        if new and self.known(slot, new[0][: -SIZES[slot]]):
            self.index.apply(slot, self.run(slot, new))
            self.held[slot]["GPU"].update(new)

    @rule(slot=engines, prompt=prompts)
    def decode(self, slot, prompt):
        """An answer grows by blocks, one a step."""
        for block in self.blocks(slot, prompt):
            if self.known(slot, block[: -SIZES[slot]]) and not self.held[slot]["GPU"][block]:
                self.index.take(slot, [self.run(slot, [block])])
                self.held[slot]["GPU"][block] += 1

    @rule(slot=engines, prompt=prompts)
    def report(self, slot, prompt):
        """The engine is asked to announce what it holds once more."""
        blocks = self.blocks(slot, prompt)
        hit = 0
        while hit < len(blocks) and self.held[slot]["GPU"][blocks[hit]]:
            hit += 1
        if hit:
            self.index.reannounced(slot, self.keys(prompt))
            self.index.apply(slot, self.run(slot, blocks[:hit]))

    @precondition(lambda self: any(tier for held in self.held for tier in held.values()))
    @rule(data=st.data())
    def evict(self, data):
        there = [
            (slot, tier, block)
            for slot, held in enumerate(self.held)
            for tier, blocks in held.items()
            for block in sorted(blocks)
        ]
        slot, tier, block = data.draw(st.sampled_from(there))
        self.index.apply(slot, removed(self.name(slot, block), medium=tier))
        self.held[slot][tier] -= Counter([block])

    @rule(slot=engines, count=st.integers(1, 70), medium=st.sampled_from(["GPU", "gpu"]))
    def evict_many(self, slot, count, medium):
        """The longest first, as engines free a sequence from its tail; an event for each, as vLLM does."""
        gone = sorted(self.held[slot]["GPU"], key=lambda block: (-len(block), block))[:count]
        self.index.take(slot, [removed(self.name(slot, block), medium=medium) for block in gone])
        self.held[slot]["GPU"] -= Counter(gone)

    @rule(slot=engines, prompt=prompts, tier=below, told=st.booleans())
    def offload(self, slot, prompt, tier, told):
        """Blocks go to a tier below: as placeholders, or with their tokens."""
        blocks = [block for block in self.blocks(slot, prompt) if self.known(slot, block)]
        if blocks:
            names = [self.name(slot, block) for block in blocks]
            tokens = [0] * SIZES[slot] * len(names) if told else []
            self.index.apply(slot, stored(names, tokens, medium=tier, block_size=SIZES[slot] if told else 0))
            self.held[slot][tier].update(blocks)

    @rule(slot=engines)
    def reset(self, slot):
        self.index.apply(slot, CLEARED)
        self.held[slot]["GPU"].clear()

    @rule(slot=engines, steps=st.integers(0, 3), prompt=prompts)
    def reset_slowly(self, slot, steps, prompt):
        """While a reset is worked through, nothing counts of the GPU any more, and everything of what is below."""
        work = self.index.reset(slot)
        for _ in range(steps):
            next(work, None)
        if steps:
            self.held[slot]["GPU"].clear()
            self.ask(prompt)
        for _ in work:
            pass
        self.held[slot]["GPU"].clear()

    @rule(slot=engines)
    def restart(self, slot):
        self.index.forget(slot)
        self.empty(slot)
        self.reading[slot] = False

    @rule(slot=engines)
    def replace(self, slot):
        self.index.drop(slot)
        self.index.add(endpoint(slot), True)
        self.index.believe(slot)
        self.empty(slot)
        self.reading[slot] = False

    @rule(slot=engines, past=st.booleans())
    def read(self, slot, past):
        self.index.reading(slot, past)
        self.reading[slot] = past

    @rule(slot=engines, prompt=prompts)
    def place(self, slot, prompt):
        """What is predicted is gone before anyone asks."""
        self.index.placed(self.keys(prompt), endpoint(slot, capacity=CAPACITY))
        self.clock.now += 100
        for _ in range(10):
            self.index.match(self.keys(prompt), 1, [])

    @rule(budget=st.integers(1, 5))
    def sweep(self, budget):
        self.index.sweep(budget)

    def keys(self, prompt):
        tokens = array("I", [number for number in prompt for _ in range(UNIT)])
        return self.index.keys(tokens, len(tokens), True, None, None)

    @rule(prompt=prompts)
    def ask(self, prompt):
        keys = self.keys(prompt)
        count = UNIT * len(prompt)
        matches = self.index.match(keys, count, [endpoint(slot) for slot in range(len(SIZES))])
        for slot, size in enumerate(SIZES):
            if self.reading[slot]:
                assert matches[slot].source in (Source.ESTIMATED, Source.NONE)
                continue
            depths = {"GPU": 0, "CPU": 0, "STORAGE": 0}
            for block in self.blocks(slot, prompt):
                tier = next((tier for tier, blocks in self.held[slot].items() if blocks[block]), None)
                if tier is None:
                    break
                depths[tier] += size
            match = matches[slot]
            if self.whole:
                assert (match.gpu, match.cpu, match.storage) == tuple(depths.values())
                assert match.expected_hit == min(sum(depths.values()), (count - 1) // size * size)
            else:
                assert match.tokens <= sum(depths.values())

    @invariant()
    def sizes_agree(self):
        if not hasattr(self, "index"):
            return
        for slot, holder in self.index._holders.items():
            known = {block for tier in self.held[slot].values() for block, copies in tier.items() if copies}
            if self.whole:
                assert len(holder.holdings) == len(known)
            else:
                assert len(holder.holdings) <= len(known)
        assert sum(len(holder.holdings) for holder in self.index._holders.values()) <= self.max_blocks

    def teardown(self):
        if hasattr(self, "index"):
            for slot in range(len(SIZES)):
                self.index.drop(slot)
            assert self.index.sweep(10**6)
            assert self.index.blocks == 0


class Small(Naive):
    """An index that is too small for what it is told: what it says is true, but not all."""

    whole = False
    max_blocks = 12


Naive.TestCase.settings = settings(max_examples=50, stateful_step_count=50)
Small.TestCase.settings = settings(max_examples=30, stateful_step_count=50)
TestNaive = Naive.TestCase
TestSmall = Small.TestCase
