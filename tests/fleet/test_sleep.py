from __future__ import annotations

import pytest

from gateway.fleet.sleep import Sleep, deepest

STATES = ("awake", "weights_offloaded", "discard_all")


def samples(*ranks: str) -> list[tuple[bytes, float]]:
    """As vLLM tells of ranks, each in the state of this name; "paused" is none of them."""
    return [
        (f'{{engine="{rank}",sleep_state="{state}"}}'.encode(), float(state == now))
        for state in STATES
        for rank, now in enumerate(ranks)
    ]


@pytest.mark.parametrize(
    ("ranks", "sleep"),
    [
        (("awake",), None),
        (("awake", "awake"), None),
        (("paused",), Sleep.PAUSED),
        (("weights_offloaded",), Sleep.OFFLOADED),
        (("discard_all",), Sleep.DISCARDED),
        (("awake", "paused"), Sleep.PAUSED),
        (("paused", "weights_offloaded"), Sleep.OFFLOADED),
        (("weights_offloaded", "discard_all", "awake"), Sleep.DISCARDED),
    ],
)
def test_the_deepest_sleep_of_the_ranks_counts(ranks, sleep) -> None:
    assert deepest(samples(*ranks)) == sleep


def test_who_says_nothing_is_awake() -> None:
    assert deepest([]) is None


def test_who_says_no_more_than_that_it_is_not_awake_has_lost_its_kv() -> None:
    assert deepest([(b'{sleep_state="awake"}', 0.0)]) is Sleep.OFFLOADED
