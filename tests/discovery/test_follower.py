"""One source, followed: what is kept, what is said once, and what its own failure changes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

import pytest

from gateway.core.clock import ManualClock
from gateway.core.tasks import TaskSet
from gateway.discovery.follower import Follower
from gateway.discovery.settings import DiscoverSettings
from gateway.discovery.source import Found, Lost
from gateway.errors import ConfigError
from gateway.fleet.settings import EndpointSettings
from tests.support.wait import eventually

A, B = EndpointSettings("http://a:1"), EndpointSettings("http://b:1")


class Scripted:
    """Tells what it is told to; ``fails``: raises that once."""

    def __init__(self) -> None:
        self.fails: Exception | None = None
        self.followed = 0

    async def follow(self, found: Found, lost: Lost) -> None:
        self.followed += 1
        self.found, self.lost = found, lost
        if self.fails is not None:
            failure, self.fails = self.fails, None
            raise failure
        await asyncio.Event().wait()


@contextlib.asynccontextmanager
async def following(clock: ManualClock, source: Scripted) -> AsyncIterator[tuple[Follower, list[int]]]:
    changes: list[int] = []
    tasks = TaskSet()
    follower = Follower("m", DiscoverSettings(file="x"), lambda _: source, clock, lambda: changes.append(1))
    tasks.start(follower.run(), name="follow")
    await eventually(lambda: source.followed)
    try:
        yield follower, changes
    finally:
        await tasks.close()


async def test_another_list_is_a_change_and_the_same_one_is_none(caplog) -> None:
    caplog.set_level(logging.INFO)
    clock, source = ManualClock(epoch=1000.0), Scripted()
    async with following(clock, source) as (follower, changes):
        assert not follower.told.is_set()
        source.found([])
        assert follower.told.is_set()
        source.found([A], ["b is wrong"])
        source.found([A], ["b is wrong"])
        clock.now = 5.0
        source.found([A, B])
        assert len(changes) == 3
        assert (follower.endpoints, follower.wrong, follower.problem) == ([A, B], (), "")
        assert follower.changed_at == 1005.0
        assert caplog.text.count("left out: b is wrong") == 1
        assert "file x: 2 endpoints (+1 -0)" in caplog.text


async def test_a_source_that_is_lost_is_said_once_and_keeps_its_list(caplog) -> None:
    clock, source = ManualClock(), Scripted()
    caplog.set_level(logging.INFO)
    async with following(clock, source) as (follower, changes):
        source.lost("refused")
        assert "told none yet" in caplog.text
        source.found([A])
        clock.now = 100.0
        for number in range(10):
            source.lost(f"timeout {number}")
        assert (follower.problem, follower.endpoints) == ("timeout 9", [A])
        assert caplog.text.count("timeout") == 2  # the first time, and another reason within the minute
        assert "the 1 endpoints that it told last stay" in caplog.text
        source.found([A])
        assert "can be read again" in caplog.text
        assert follower.problem == ""
        assert len(changes) == 1


async def test_a_list_of_a_source_of_which_a_part_is_lost_counts_and_the_rest_stays_lost(caplog) -> None:
    source = Scripted()
    caplog.set_level(logging.INFO)
    async with following(ManualClock(), source) as (follower, _):
        for endpoints in ([A], [A, B]):
            source.found(endpoints, (), "b times out")
            assert (follower.endpoints, follower.problem) == (endpoints, "b times out")
        assert caplog.text.count("b times out") == 1
        assert "can be read again" not in caplog.text
        source.found([A, B])
        assert follower.problem == ""
        assert caplog.text.count("can be read again") == 1


async def test_a_source_that_fails_is_followed_again(caplog, monkeypatch) -> None:
    monkeypatch.setattr("gateway.discovery.follower.AGAIN", 0.01)
    source = Scripted()
    source.fails = RuntimeError("broken")
    async with following(ManualClock(), source) as (follower, _):
        await eventually(lambda: source.followed == 2)
        assert "broken" in follower.problem
        source.found([A])
        assert follower.endpoints == [A]


async def test_one_that_cannot_be_made_is_made_later(monkeypatch) -> None:
    monkeypatch.setattr("gateway.discovery.follower.AGAIN", 0.01)
    source, problems = Scripted(), [ConfigError("no kubeconfig")]

    def make(settings: DiscoverSettings) -> Scripted:
        if problems:
            raise problems.pop()
        return source

    follower = Follower("m", DiscoverSettings(file="x"), make, ManualClock(), lambda: None)
    tasks = TaskSet()
    tasks.start(follower.run(), name="follow")
    await eventually(lambda: source.followed)
    assert follower.problem == "no kubeconfig"
    await tasks.close()


async def test_a_list_beyond_any_deployment_is_not_believed(monkeypatch) -> None:
    """What is wrong in it counts, too: a list of a million wrong entries is a mistake as well."""
    monkeypatch.setattr("gateway.discovery.follower.MOST_ENDPOINTS", 2)
    source = Scripted()
    async with following(ManualClock(), source) as (follower, _):
        source.found([A, B])
        source.found([A, B, A])
        assert (follower.endpoints, follower.problem) == ([A, B], "it tells 3 endpoints, more than 2")
        source.found([A, B])
        source.found([A], ["b is wrong", "c is wrong"])
        assert (follower.endpoints, follower.problem) == ([A, B], "it tells 3 endpoints, more than 2")
        assert follower.wrong == ()


async def test_only_some_wrong_entries_are_logged(caplog) -> None:
    source = Scripted()
    async with following(ManualClock(), source) as (follower, _):
        source.found([], [f"entry {number} is wrong" for number in range(1000)])
        assert caplog.text.count("is wrong") == 20
        assert len(follower.wrong) == 1000


@pytest.mark.parametrize("told", [True, False])
async def test_one_in_the_place_of_another_begins_with_its_list(told: bool) -> None:
    source = Scripted()
    async with following(ManualClock(), source) as (follower, changes):
        before = Follower("m", DiscoverSettings(file="x", role="decode"), lambda _: source, ManualClock(), lambda: None)
        before.endpoints = [A]
        follower.inherit(before)
        assert follower.endpoints == [A]
        if told:
            source.found([])
            assert (follower.endpoints, len(changes)) == ([], 1)
