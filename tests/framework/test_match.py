from __future__ import annotations

from gateway.framework.match import Match, Matches


def test_the_length_of_a_match_is_that_of_all_its_tiers() -> None:
    assert Match(gpu=64, cpu=32, storage=16, expected_hit=96).tokens == 112


def test_a_slot_without_a_match_holds_nothing_and_gets_no_entry() -> None:
    matches = Matches({1: Match(gpu=16)})
    matches.room = {1: 4096}
    assert matches[0].tokens == 0
    assert set(matches) == {1}
    assert (matches.room, Matches().room) == ({1: 4096}, {})
