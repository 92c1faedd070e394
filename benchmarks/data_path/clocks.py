"""Clocks around functions of a running program: own seconds of each, what reading the clocks takes left out.

A reading is a system call, and each clock is a function more: some 2 us around a step that may take 5. What that is, is
measured in the same process, and in its traffic: a pair of empty steps, one within the other, runs now and then
(``Probe``). A part of it falls into the step itself (``own``), the rest into the step around it (``around``).
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Awaitable, Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any

CALL, TURN = 0, 1
"""Kinds of steps: a call, and one turn of a coroutine. Their clocks cost differently."""

EMPTY, AROUND = "an empty {}", "an empty {} within another"
KINDS = ("call", "turn")


@dataclass(slots=True)
class Step:
    """``spent``: own seconds, those of the steps within it left out. ``entries``: times that its clock was started.
    ``ended``: times that it was over; a coroutine has several turns. ``inside``: entries of steps right within it, by
    kind."""

    kind: int
    spent: float = 0.0
    entries: int = 0
    ended: int = 0
    inside: list[int] = field(default_factory=lambda: [0, 0])

    def since(self, before: Step) -> Step:
        inside = [now - then for now, then in zip(self.inside, before.inside, strict=True)]
        return Step(
            self.kind, self.spent - before.spent, self.entries - before.entries, self.ended - before.ended, inside
        )

    def copy(self) -> Step:
        return self.since(Step(self.kind))


class Clock:
    """The steps by their names. They nest as calls do: only those of the thread that made the clock are timed.
    ``root``: what is around all of them."""

    def __init__(self) -> None:
        self.root = Step(CALL)
        self.steps: dict[str, Step] = {}
        self.at = self.root
        self.inner = 0.0
        """Seconds so far of the steps within the one that runs."""
        self.thread = threading.get_ident()

    def step(self, name: str, kind: int) -> Step:
        return self.steps.setdefault(name, Step(kind))


@dataclass(frozen=True)
class Cost:
    """Seconds of one clock: that fall into its step, and into the one around it."""

    own: float
    around: float


def costs(steps: Mapping[str, Step]) -> list[Cost]:
    """By kind, as the empty steps show it; nothing where they did not run."""
    found = []
    for kind in KINDS:
        empty, around = steps.get(EMPTY.format(kind)), steps.get(AROUND.format(kind))
        if empty is None or around is None or not empty.entries or not around.entries:
            found.append(Cost(0.0, 0.0))
        else:
            own = empty.spent / empty.entries
            found.append(Cost(own, around.spent / around.entries - own))
    return found


def corrected(step: Step, each: list[Cost], *, has_clock: bool = True) -> float:
    """A step's own seconds, without those of the clocks. ``has_clock``: what is around all steps has none."""
    own = step.entries * each[step.kind].own if has_clock else 0.0
    return step.spent - own - sum(count * cost.around for count, cost in zip(step.inside, each, strict=True))


def time_call(owner: Any, attribute: str, name: str, clock: Clock) -> None:
    real = getattr(owner, attribute)
    setattr(owner, attribute, functools.wraps(real)(timed_call(real, name, clock)))


def timed_call(real: Callable[..., Any], name: str, clock: Clock) -> Callable[..., Any]:
    step = clock.step(name, CALL)
    now, thread = time.thread_time, threading.get_ident

    def timed(*args: Any, **kwargs: Any) -> Any:
        if thread() != clock.thread:  # long prompts: not a step of the loop's
            return real(*args, **kwargs)
        around, before = clock.at, clock.inner
        around.inside[CALL] += 1
        clock.at, clock.inner = step, 0.0
        began = now()
        try:
            return real(*args, **kwargs)
        finally:
            took = now() - began
            step.spent += took - clock.inner
            step.entries += 1
            step.ended += 1
            clock.at, clock.inner = around, before + took

    return timed


def time_turns(owner: Any, attribute: str, name: str, clock: Clock) -> None:
    real = getattr(owner, attribute)
    setattr(owner, attribute, functools.wraps(real)(timed_turns(real, name, clock)))


def timed_turns(real: Callable[..., Any], name: str, clock: Clock) -> Callable[..., Awaitable[Any]]:
    step = clock.step(name, TURN)

    async def timed(*args: Any, **kwargs: Any) -> Any:
        return await _Driven(real(*args, **kwargs), step, clock)

    return timed


class _Driven:
    """A coroutine, each of whose turns is timed."""

    __slots__ = ("_clock", "_inner", "_step")

    def __init__(self, inner: Any, step: Step, clock: Clock) -> None:
        self._inner = inner
        self._step = step
        self._clock = clock

    def __await__(self) -> Generator[Any, Any, Any]:
        inner, step, clock, now = self._inner, self._step, self._clock, time.thread_time
        turn: Callable[[Any], Any] = inner.send
        given: Any = None
        while True:
            around, before = clock.at, clock.inner
            around.inside[TURN] += 1
            clock.at, clock.inner = step, 0.0
            began = now()
            try:
                waited_for = turn(given)
            except StopIteration as done:
                step.ended += 1
                return done.value
            except BaseException:
                step.ended += 1
                raise
            finally:
                took = now() - began
                step.spent += took - clock.inner
                step.entries += 1
                clock.at, clock.inner = around, before + took
            try:
                given = yield waited_for
                turn = inner.send
            except BaseException as error:  # whatever it is, it is for the coroutine
                given, turn = error, inner.throw


class Probe:
    """The empty steps: ``run`` is called in the traffic, once for each request. The means of more in a row would be too
    low: a request's clocks, too, are cold between its steps."""

    def __init__(self, clock: Clock) -> None:
        empty = timed_call(_nothing, EMPTY.format(KINDS[CALL]), clock)
        empty_turn = timed_turns(_nothing_later, EMPTY.format(KINDS[TURN]), clock)

        def call() -> None:
            empty()

        async def turn() -> None:
            await empty_turn()

        self._call = timed_call(call, AROUND.format(KINDS[CALL]), clock)
        self._turn = timed_turns(turn, AROUND.format(KINDS[TURN]), clock)

    async def run(self) -> None:
        self._call()
        await self._turn()


def _nothing() -> None:
    pass


async def _nothing_later() -> None:
    pass
