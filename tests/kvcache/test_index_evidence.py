from __future__ import annotations

from gateway.framework import NO_MATCH, Match, Source
from tests.kvcache.conftest import endpoint, ids, index_of, look, removed, stored, tokens_held


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


def test_more_is_held_than_was_predicted():
    index = index_of()
    index.believe(0)
    index.placed(index.keys(ids(1, 2), 33, True, None, None), endpoint())
    index.apply(0, stored([11, 12, 13], ids(1, 2, 3)))
    assert tokens_held(index, 0, ids(1, 2, 3)) == 48
    index.apply(0, stored([14], ids(4), parent=13))
    assert tokens_held(index, 0, ids(1, 2, 3, 4)) == 64
    index.apply(0, removed(14, 13, 12, 11))
    assert index.blocks == 0


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
