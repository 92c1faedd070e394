from __future__ import annotations

from itertools import product

import msgspec
import pytest

from gateway.core.prompt import Prompt
from gateway.framework import NO_MATCH
from gateway.framework.match import Match, Source
from gateway.kvcache.index.block_events import BlockStored
from gateway.kvcache.index.predictions import COMPUTED_WITHIN, EVENTS_WITHIN
from tests.kvcache.conftest import CLEARED, endpoint, ids, index_of, look, removed, stored, tokens_held


def test_a_placement_is_predicted_until_events_tell(clock):
    index = index_of(2, clock=clock)
    index.apply_one(0, stored([19], ids(9)))
    keys = index.keys(Prompt(ids(1, 2, 3), 48, True))
    use = index.placed(keys, endpoint(0))
    assert look(index, ids(1, 2, 3), count=49) == Match(gpu=48, expected_hit=48, source=Source.PREDICTED)
    use.computed()
    index.apply_one(0, stored([11, 12, 13], ids(1, 2, 3)))
    assert look(index, ids(1, 2, 3), count=49).source is Source.EVENTS
    clock.now += 100
    assert look(index, ids(1, 2, 3), count=49).tokens == 48
    index.apply_one(0, removed(13))
    assert look(index, ids(1, 2, 3), count=49).tokens == 32


def test_a_prediction_lasts_while_its_prompt_waits_and_a_while_for_its_events(clock):
    index = index_of(clock=clock)
    index.set_complete(0)
    keys = index.keys(Prompt(ids(1), 17, True))
    use = index.placed(keys, endpoint(0))
    clock.now += 100
    assert look(index, ids(1), count=17).source is Source.PREDICTED
    use.computed()
    use.end()
    assert look(index, ids(1), count=17).source is Source.PREDICTED, "its events are on their way"
    clock.now += EVENTS_WITHIN
    assert look(index, ids(1), count=17) == NO_MATCH


def test_a_prompt_that_nobody_computes_is_predicted_no_more(clock):
    index = index_of(clock=clock)
    index.set_complete(0)
    keys = index.keys(Prompt(ids(1), 17, True))
    use, other = index.placed(keys, endpoint(0)), index.placed(keys, endpoint(0))
    use.end()
    use.end()
    assert look(index, ids(1), count=17).source is Source.PREDICTED, "there is another"
    other.end()
    assert look(index, ids(1), count=17) == NO_MATCH
    index.placed(keys, endpoint(0))
    clock.now += COMPUTED_WITHIN
    assert look(index, ids(1), count=17) == NO_MATCH, "nothing waits as long as that"


def test_more_is_held_than_was_predicted():
    index = index_of()
    index.set_complete(0)
    use = index.placed(index.keys(Prompt(ids(1, 2), 33, True)), endpoint())
    index.apply_one(0, stored([11, 12, 13], ids(1, 2, 3)))
    use.computed()
    assert tokens_held(index, 0, ids(1, 2, 3)) == 48
    index.apply_one(0, stored([14], ids(4), parent=13))
    assert tokens_held(index, 0, ids(1, 2, 3, 4)) == 64
    index.apply_one(0, removed(14, 13, 12, 11))
    assert index.blocks == 0


def test_a_held_block_that_is_evicted_is_computed_again_by_a_request_that_waits_for_it():
    index = index_of()
    index.apply_one(0, stored([11, 12], ids(1, 2)))
    use = index.placed(index.keys(Prompt(ids(1, 2), 33, True)), endpoint(0))
    assert look(index, ids(1, 2), count=33).source is Source.EVENTS
    index.apply_one(0, removed(12))
    assert look(index, ids(1, 2), count=33) == Match(gpu=32, expected_hit=32, source=Source.PREDICTED)
    use.end()
    assert look(index, ids(1, 2), count=33).tokens == 16


def test_what_the_engine_reports_ends_a_wrong_prediction():
    index = index_of()
    index.set_complete(0)
    index.apply_one(0, stored([11], ids(1)))
    keys = index.keys(Prompt(ids(1, 2, 3), 49, True))
    use = index.placed(keys, endpoint(0))
    use.computed()
    use.reported(48, 48)
    use.reported(48, None)
    index.placed(keys, endpoint(3)).reported(48, 0)
    assert look(index, ids(1, 2, 3)).tokens == 48
    use.reported(48, 16)
    assert look(index, ids(1, 2, 3)).tokens == 16


def test_what_the_engine_reports_mends_a_count_of_copies():
    index = index_of()
    index.apply_one(0, stored([11, 12], ids(1, 2)))
    index.apply_one(0, stored([11, 12], ids(1, 2)))  # a report of what is held, no copies
    index.apply_one(0, removed(12))
    keys = index.keys(Prompt(ids(1, 2), 33, True))
    assert look(index, ids(1, 2), count=33).expected_hit == 32
    index.apply_one(0, stored([12], ids(2), parent=11))  # computed again
    index.settled(keys, endpoint(0), expected=32, reported=16)
    index.apply_one(0, removed(12))
    assert look(index, ids(1, 2), count=33).expected_hit == 16


# estimates


def test_where_no_events_come_what_was_sent_there_counts():
    index = index_of(2, events=False)
    index.placed(index.keys(Prompt(ids(1, 2), 33, True)), endpoint(0))
    assert look(index, ids(1, 2, 3), count=49) == Match(gpu=32, expected_hit=32, source=Source.ESTIMATED)
    assert look(index, ids(1, 2, 3), slot=1) == NO_MATCH


def test_an_estimate_has_the_capacity_that_the_engine_reports(monkeypatch):
    index = index_of(events=False)
    for number in range(5):
        index.placed(index.keys(Prompt(ids(number), 17, True)), endpoint(0, capacity=48))
    assert [look(index, ids(number), count=17).tokens for number in range(5)] == [0, 0, 16, 16, 16]
    monkeypatch.setattr("gateway.kvcache.index.cache_index.UNKNOWN_CAPACITY", 32)
    index = index_of(events=False)
    for number in range(3):
        index.placed(index.keys(Prompt(ids(number), 17, True)), endpoint(0))
    assert [look(index, ids(number), count=17).tokens for number in range(3)] == [0, 16, 16]


def test_an_endpoint_whose_events_do_not_come_is_estimated():
    index = index_of()
    index.placed(index.keys(Prompt(ids(1), 17, True)), endpoint(0))
    assert look(index, ids(1), count=17).source is Source.ESTIMATED
    index.apply_one(0, stored([19], ids(9)))
    assert look(index, ids(1), count=17).source is Source.PREDICTED


def test_an_estimated_prompt_is_estimated_everywhere():
    index = index_of()
    index.apply_one(0, stored([11], ids(1)))
    assert look(index, ids(1), count=17, exact=False) == NO_MATCH
    index.placed(index.keys(Prompt(ids(1), 17, False)), endpoint(0))
    assert look(index, ids(1), count=17, exact=False).source is Source.ESTIMATED
    index.settled(index.keys(Prompt(ids(1), 17, False)), endpoint(0), 16, 0)
    assert look(index, ids(1), count=17, exact=False).tokens == 16


# where events do not tell all


def test_what_is_sent_to_an_endpoint_whose_past_is_not_known_is_estimated_too(clock):
    """Its prefixes that are used most are those that it has had for long, and announces never again."""
    index = index_of(clock=clock)
    index.set_partial(0)
    index.apply_one(0, stored([77], ids(7)))
    keys = index.keys(Prompt(ids(1, 2, 3), 49, True))
    use = index.placed(keys, endpoint(0))
    use.reported(0, 32)
    use.end()
    index.apply_one(0, stored([13], ids(3), parent=12))
    assert look(index, ids(1, 2, 3), count=49) == Match(gpu=48, expected_hit=48, source=Source.ESTIMATED)
    assert look(index, ids(7), count=17).source is Source.EVENTS
    index.apply_one(0, CLEARED)
    assert look(index, ids(1, 2, 3), count=49) == NO_MATCH
    index.placed(keys, endpoint(0)).end()
    assert look(index, ids(1, 2, 3), count=49).source is Source.ESTIMATED
    index.set_complete(0)
    assert look(index, ids(1, 2, 3), count=49) == NO_MATCH, "its events tell all now"


def test_the_tiers_that_events_tell_are_in_what_is_estimated(clock):
    index = index_of(clock=clock)
    index.set_partial(0)
    index.apply_one(0, stored([11, 12], ids(1, 2)))
    index.apply_one(0, BlockStored(block_hashes=[12], medium="CPU"))
    index.apply_one(0, removed(12))
    index.placed(index.keys(Prompt(ids(1, 2, 3), 49, True)), endpoint(0)).end()
    assert look(index, ids(1, 2, 3), count=49) == Match(gpu=32, cpu=16, expected_hit=48, source=Source.ESTIMATED)
    for _ in index.reset_gpu(0):
        assert look(index, ids(1, 2, 3), count=49) == NO_MATCH
    assert look(index, ids(1, 2, 3), count=49) == NO_MATCH
    assert index.blocks == 2


def test_a_prompt_whose_end_no_event_tells_is_estimated_behind_its_beginning(clock):
    """A chat with an image: its turns find their engine again though no event names the image's blocks."""
    index = index_of(2, clock=clock)
    for slot in (0, 1):
        index.set_complete(slot)
    first = index.keys(Prompt(ids(1, 1 << 31, 3), 49, True, "image"))
    index.placed(first, endpoint(0)).end()
    index.apply_one(0, stored([11], ids(1)))
    keys = index.keys(Prompt(ids(1, 1 << 31, 3, 4), 65, True, "image"))
    matches = index.match(keys, 65, [endpoint(0), endpoint(1)])
    assert matches == {0: Match(gpu=48, expected_hit=48, source=Source.ESTIMATED)}
    whole = index.keys(Prompt(ids(1, 1 << 31, 3, 4), 65, True))
    assert index.match(whole, 65, [endpoint(0)])[0].tokens == 16
    index.apply_one(0, CLEARED)
    assert index.match(keys, 65, [endpoint(0)]) == {}


def test_what_stands_in_for_tokens_may_be_longer_than_they_are():
    index = index_of()
    index.set_complete(0)
    keys = index.keys(Prompt(ids(1, 1 << 31, 3), 49, True, "image"))
    approximate = index._states[0].approximate
    index.settled(keys, endpoint(0), expected=48, reported=30)
    assert approximate.believed == 1
    index.settled(keys, endpoint(0), expected=48, reported=20)
    assert approximate.believed < 1


@pytest.mark.parametrize(("events", "seen", "replaying", "partial"), [*product([False, True], repeat=4)])
def test_matches_and_placements_agree_on_what_events_cover(events, seen, replaying, partial):
    """Both ask it in a form of their own, for every request: ``EndpointState`` says it as one condition."""
    for exact, whole, differs in product([False, True], repeat=3):
        index = index_of()
        one = endpoint(0)
        index.add(one, events)
        index.apply_one(0, stored([11], ids(1)))
        state = index._states[0]
        state.events_seen, state.partial = seen, partial
        index.set_replaying(0, replaying)
        keys = index.keys(Prompt(ids(1, 2, 3), 49, True))
        differing = frozenset([one.name] if differs else [])
        keys = msgspec.structs.replace(keys, exact=exact, whole=whole, differing=differing)
        assert index.covers(0, keys) is state.covered_by_events(keys)
        match = index.match(keys, 49, (one,))[0]
        assert match.source is (Source.EVENTS if state.covered_by_events(keys) else Source.NONE)
        index.placed(keys, one).end()  # what is left of it is the approximation
        match = index.match(keys, 49, (one,))[0]
        assert (match.tokens, match.source) == (
            (16, Source.EVENTS) if state.fully_covered(keys) else (48, Source.ESTIMATED)
        )
