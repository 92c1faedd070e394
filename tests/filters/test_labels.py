from __future__ import annotations

import pytest

from filters.labels import Labels
from tests.support.candidates import context, endpoint, names, request

FLEET = [
    endpoint(0, labels={"zone": "a", "gpu": "h100"}),
    endpoint(1, labels={"zone": "b", "gpu": "h100"}),
    endpoint(2),
]


def kept(match, prefer=False):
    return names(Labels(Labels.Parameters(match=match, prefer=prefer), context()).filter(request(), FLEET))


def test_one_value() -> None:
    assert kept({"zone": "a"}) == ["e0"]


def test_any_of_several_values() -> None:
    assert kept({"zone": ("a", "b", "c")}) == ["e0", "e1"]


def test_every_label_must_match() -> None:
    assert kept({"gpu": "h100", "zone": "b"}) == ["e1"]


def test_a_value_is_compared_whole() -> None:
    assert kept({"gpu": "h1"}) == []


def test_a_wish_is_dropped_where_nothing_matches() -> None:
    assert kept({"zone": "c"}) == []
    assert kept({"zone": "c"}, prefer=True) == ["e0", "e1", "e2"]
    assert kept({"zone": "a"}, prefer=True) == ["e0"]


@pytest.mark.parametrize("match", [{}, {"zone": ()}, {"zone": ""}])
def test_a_match_without_a_label_or_value_is_refused(match) -> None:
    with pytest.raises(ValueError, match="at least one"):
        Labels.Parameters(match=match)
