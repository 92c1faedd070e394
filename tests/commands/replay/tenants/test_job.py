"""A run, and the search for what a fleet can serve."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.commands.replay.policies import load_policy
from gateway.commands.replay.tenants import job as module
from gateway.commands.replay.tenants.figures import ALL, LIGHT
from gateway.commands.replay.tenants.job import PRECISION, FindCapacity
from tests.commands.replay.tenants.scenes import FLEET, SMALL, job


def test_a_run_has_its_figures_and_can_be_repeated() -> None:
    shares: list[float] = []
    outcome = job("at-once", 6.0, load=0.5).do(shares.append)
    assert (outcome.scene, outcome.way, outcome.load, outcome.rate, outcome.seed) == ("small", "at-once", 0.5, 6.0, 1)
    assert set(outcome.groups) == {ALL, LIGHT, "light-1", "light-2", "greedy"}
    assert outcome.groups[ALL]["requests"] == pytest.approx(120, rel=0.3)
    assert outcome.groups[ALL]["good"] > 0.99
    assert shares == sorted(shares)
    assert shares[-1] == 1
    again = job("at-once", 6.0, load=0.5).do(shares.append)
    assert replace(again, cpu_seconds=0.0) == replace(outcome, cpu_seconds=0.0)


def test_refused_requests_have_their_reasons(monkeypatch) -> None:
    monkeypatch.setattr("gateway.commands.replay.tenants.llm_d.MOST", 3)
    outcome = job("llm-d-round-robin", 300.0, seconds=2.0).do(lambda share: None)
    assert outcome.reasons["greedy"]["queue-full"] > 10
    assert 0 < outcome.groups["greedy"]["refused"] < 1


@pytest.mark.slow
def test_the_capacity_is_the_most_that_is_served(monkeypatch) -> None:
    monkeypatch.setattr(module, "TRIAL_SECONDS", 2.0)
    shares: list[float] = []
    found = FindCapacity(SMALL, FLEET, load_policy("default")).do(shares.append)
    assert found.scene == "small"
    assert found.line == f"small: the fleet can serve {found.rate:.1f} requests/s"
    assert shares == sorted(shares)
    assert all(0 < share <= 1 for share in shares)
    finder = FindCapacity(SMALL, FLEET, load_policy("default"))
    assert finder._serves(found.rate)
    assert not finder._serves(found.rate * PRECISION)
    larger = replace(FLEET, fleet=(replace(FLEET.fleet[0], count=4),))
    assert FindCapacity(SMALL, larger, load_policy("default"))._serves(1.2 * found.rate)
