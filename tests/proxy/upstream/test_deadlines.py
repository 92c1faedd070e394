"""Covers: gateway/proxy/upstream/deadlines.py.

The timer that answers have in common until their first look."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial

import pytest

from gateway.http1.connection import Connection
from gateway.proxy.upstream.deadlines import Deadlines, FirstLooks, first_look
from gateway.proxy.upstream.legs import Cause
from tests.support.gateway import PATIENT
from tests.support.wait import eventually

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio", "uvloop"])

SHORT = replace(PATIENT, idle=0.02)
"""The first look comes soon, and ends nothing before commit."""


class Answers:
    """The deadlines of some answers, and which of them have expired. ``timers``: how often the common one was set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.first_looks = FirstLooks(first_look(SHORT))
        self.expired: list[tuple[str, Cause]] = []
        self.timers = 0
        run = self.first_looks.run

        def counted(loop: asyncio.AbstractEventLoop, began: float) -> None:
            self.timers += 1
            run(loop, began)

        monkeypatch.setattr(self.first_looks, "run", counted)

    def begin(self, name: str, *, committed: bool = True) -> Deadlines:
        deadlines = Deadlines(SHORT, Connection(lambda _: None), partial(self._expired, name), self.first_looks)
        if committed:
            deadlines.committed()
        return deadlines

    def _expired(self, name: str, cause: Cause) -> None:
        self.expired.append((name, cause))


async def test_answers_that_end_in_time_have_one_timer_in_common(monkeypatch):
    answers = Answers(monkeypatch)
    for _ in range(100):
        answers.begin("ends").end()
    assert (answers.timers, answers.first_looks.waiting) == (1, {})
    await eventually(lambda: not answers.first_looks.runs, "it has run out")
    assert (answers.timers, answers.expired) == (1, [])
    answers.begin("comes later").end()
    assert answers.timers == 2


async def test_all_that_last_are_looked_at_by_one_timer(monkeypatch):
    answers = Answers(monkeypatch)
    answers.begin("first")
    ends = answers.begin("ends")
    answers.begin("third")
    await asyncio.sleep(0)
    answers.begin("later")
    ends.end()
    await eventually(lambda: len(answers.expired) == 3, "all but one have expired")
    assert sorted(answers.expired) == [(name, Cause.IDLE_TIMEOUT) for name in ("first", "later", "third")]
    assert not answers.first_looks.waiting


async def test_one_that_goes_on_has_a_timer_of_its_own(monkeypatch):
    answers = Answers(monkeypatch)
    goes_on, ends = answers.begin("goes on", committed=False), answers.begin("ends", committed=False)
    await eventually(lambda: not answers.first_looks.waiting, "both were looked at")
    assert answers.expired == []
    ends.end()
    goes_on.committed()
    await eventually(lambda: answers.expired == [("goes on", Cause.IDLE_TIMEOUT)])
    assert not answers.first_looks.runs
