from __future__ import annotations

import pytest

from filters.prefix_affinity import PrefixAffinity
from tests.support.candidates import Physics, context, endpoint, names, request


def kept(asked, *endpoints, **parameters):
    return names(PrefixAffinity(PrefixAffinity.Parameters(**parameters), context()).filter(asked, endpoints))


def test_holders_stay() -> None:
    fleet = [endpoint(slot) for slot in range(3)]
    assert kept(request(1000, held={0: 799, 1: 800, 2: 1000}), *fleet) == ["e1", "e2"]
    assert kept(request(1000, held={0: 799}), *fleet) == ["e0", "e1", "e2"]
    assert kept(request(1000, held={0: 500}), *fleet, threshold=0.5) == ["e0"]
    assert kept(request(1000, held={0: 1000}), *fleet, threshold=0.0) == ["e0", "e1", "e2"]
    assert kept(request(0), *fleet) == ["e0", "e1", "e2"]


def test_until_they_are_saturated() -> None:
    asked = request(1000, held={0: 1000, 1: 1000})
    # 1 ms a token: 18 s are 18,000 tokens more than the least loaded of the others.
    fleet = [endpoint(0, prefill_tokens=40_000), endpoint(1, prefill_tokens=23_000), endpoint(2, prefill_tokens=5000)]
    assert kept(asked, *fleet) == ["e0", "e1"]
    fleet[1].load.prefill_tokens = 23_001
    assert kept(asked, *fleet) == ["e0", "e1", "e2"]
    assert kept(asked, *fleet, penalty=0.0) == ["e0", "e1"]
    assert kept(asked, *fleet, tokens_per_second=2000) == ["e0", "e1"]
    assert kept(asked, *fleet[:2]) == ["e0", "e1"]


def test_a_slow_endpoint_is_saturated_earlier() -> None:
    asked = request(1000, held={0: 1000})
    fleet = [endpoint(0, prefill_tokens=10_000, cost=Physics(prefill_token=2e-3)), endpoint(1)]
    assert kept(asked, *fleet) == ["e0", "e1"]


def test_some_requests_explore() -> None:
    fleet, asked = [endpoint(0), endpoint(1)], request(1000, held={0: 1000})
    curious = PrefixAffinity(PrefixAffinity.Parameters(exploration=0.25), context())
    explored = sum(len(curious.filter(asked, fleet)) == 2 for _ in range(4000))
    assert explored / 4000 == pytest.approx(0.25, abs=0.03)


@pytest.mark.parametrize("bad", [{"threshold": 1.1}, {"penalty": -1}, {"exploration": -0.1}, {"tokens_per_second": 0}])
def test_parameters_have_ranges(bad) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        PrefixAffinity.Parameters(**bad)
