from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.kvcache.estimate import Estimate

prompts = st.lists(st.lists(st.integers(0, 12), unique=True, max_size=8), max_size=12)


@given(prompts, st.integers(1, 10))
def test_it_is_a_naive_lru(sent, capacity):
    estimate, naive, told = Estimate(), [], set()
    for keys in sent:
        new, gone = estimate.sent(keys, capacity)
        told = (told | set(new)) - set(gone)
        for key in reversed(keys[:capacity]):
            if key in naive:
                naive.remove(key)
            naive.append(key)
        naive = naive[-capacity:]
        assert list(estimate) == naive
        assert told == set(naive)
        assert len(estimate) == len(naive) <= capacity


def test_the_tail_of_a_prompt_goes_first():
    estimate = Estimate()
    estimate.sent([1, 2, 3], 4)
    assert estimate.sent([7, 8], 4) == ([8, 7], [3])


def test_what_does_not_fit_is_the_tails_loss():
    estimate = Estimate()
    assert estimate.sent([1, 2, 3, 4], 2) == ([2, 1], [])


def test_it_gets_smaller_with_the_engine():
    estimate = Estimate()
    estimate.sent([1, 2, 3, 4], 4)
    assert estimate.sent([1], 2) == ([], [4, 3])
