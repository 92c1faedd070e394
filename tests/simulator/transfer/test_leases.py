"""Leases: who takes one, who is late, and who asked for more time."""

from __future__ import annotations

from simulator.job import Job
from simulator.transfer.leases import Leases
from tests.simulator.test_engine import job
from tests.support.wait import eventually


async def test_a_lease_is_taken_once() -> None:
    expired: list[Job] = []
    leases, one = Leases(expired.append), job([1])
    leases.add("one", one, 60)
    assert (leases.find("one"), len(leases)) == (one, 1)
    assert [leases.take("one"), leases.take("one"), leases.find("one")] == [one, None, None]
    assert expired == []


async def test_it_ends_by_itself() -> None:
    expired: list[Job] = []
    leases, one = Leases(expired.append), job([1])
    leases.add("one", one, 0.01)
    await eventually(lambda: expired == [one], "it ends")
    assert leases.take("one") is None


async def test_it_is_never_shortened_and_may_be_extended() -> None:
    expired: list[Job] = []
    leases, short, middle, long = Leases(expired.append), job([1]), job([2]), job([3])
    leases.add("short", short, 0.01)
    leases.add("middle", middle, 0.1)
    leases.add("long", long, 60)
    leases.extend(["short", "long", "unknown"], 0.2)
    leases.extend(["short"], 0.05)
    await eventually(lambda: len(expired) == 2, "two end")
    assert expired == [middle, short]
    leases.close()
    assert len(leases) == 0


async def test_one_of_the_same_name_ends_the_first() -> None:
    expired: list[Job] = []
    leases, one, two = Leases(expired.append), job([1]), job([2])
    leases.add("x", one, 60)
    leases.add("x", two, 60)
    assert (expired, leases.take("x")) == ([one], two)
