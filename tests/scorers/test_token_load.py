from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorers.token_load import TokenLoad
from tests.support.candidates import context, endpoint, request


def scores(asked, *endpoints, **parameters):
    return TokenLoad(TokenLoad.Parameters(**parameters), context()).score(asked, endpoints)


def test_it_counts_what_is_queued_and_what_is_new() -> None:
    asked = request(1000, held={0: 600})
    assert scores(asked, endpoint(0, prefill_tokens=600), threshold=4000) == [0.75]
    assert scores(asked, endpoint(1, prefill_tokens=600), threshold=4000) == [0.6]


def test_it_is_0_from_the_threshold_on() -> None:
    assert scores(request(1000), endpoint(0, prefill_tokens=4000), threshold=4000) == [0.0]


@given(st.integers(0, 10**7), st.integers(0, 10**7), st.integers(0, 10**8), st.integers(1, 10**8))
def test_scores_are_in_range(prompt, held, queued, threshold) -> None:
    (score,) = scores(request(prompt, held={0: held}), endpoint(0, prefill_tokens=queued), threshold=threshold)
    assert 0 <= score <= 1


def test_the_threshold_has_a_range() -> None:
    with pytest.raises(ValueError, match="threshold"):
        TokenLoad.Parameters(threshold=0)
