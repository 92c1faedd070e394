"""The names of the gateway's functions that are timed are those that it has."""

from __future__ import annotations

import inspect

from benchmarks.data_path.steps_inside import COROUTINES, STEPS


def test_every_step_is_there() -> None:
    assert [name for owner, attribute, name in STEPS if not inspect.isroutine(getattr(owner, attribute, None))] == []
    missing = [
        name
        for owner, attribute, name in COROUTINES
        if not inspect.iscoroutinefunction(getattr(owner, attribute, None))
    ]
    assert missing == []
