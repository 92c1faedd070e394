from __future__ import annotations

from gateway.framework import Plan
from gateway.scheduling.single import Single
from tests.support.candidates import context, endpoint, request


def test_it_serves_the_whole_request_on_the_best_of_its_profile() -> None:
    asked = []
    a, b = endpoint(0), endpoint(1)

    def run(name, endpoints):
        asked.append((name, endpoints))
        return [b, a]

    single = Single(Single.Parameters(profile="fast"), context())
    assert single.plan(request(), (a, b), run) == Plan.of(b, reason="single")
    assert asked == [("fast", (a, b))]
