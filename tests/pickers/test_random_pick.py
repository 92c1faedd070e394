from __future__ import annotations

from collections import Counter

from gateway.framework import NoParameters
from pickers.random_pick import RandomPick
from tests.support.candidates import context, endpoint, request

FLEET = [endpoint(slot) for slot in range(4)], [float(slot) for slot in range(4)]


def test_each_is_as_likely_whatever_its_score() -> None:
    picker = RandomPick(NoParameters(), context(seed=1))
    picked = Counter(picker.pick(request(), *FLEET)[0].name for _ in range(400))
    assert set(picked) == {"e0", "e1", "e2", "e3"}
    assert min(picked.values()) > 60


def test_the_injected_chance_decides() -> None:
    one, two = (RandomPick(NoParameters(), context(seed=9)) for _ in range(2))
    for _ in range(20):
        assert one.pick(request(), *FLEET) == two.pick(request(), *FLEET)
