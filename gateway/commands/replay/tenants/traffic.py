"""What one tenant sends: conversations, requests of their own, or bursts of these.

All of it is open: a request comes at its time, whatever happened to those before it. So each way that is compared gets
the same requests at the same times, and a fleet that is too slow is not spared.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import log
from random import Random
from typing import NamedTuple, Protocol

from gateway.commands.replay.workload import MAX_TOKENS

BLOCK = 16
"""Tokens of a block id: vLLM's, so that all that is known by blocks is known as it is when serving."""

LEAST_OUTPUT = 2
"""Tokens of an answer: with one there is no time between tokens to judge."""


class Sent(NamedTuple):
    """One request. ``at``: seconds. ``blocks``: ids of the blocks of its prompt and its answer. ``session``: empty: it
    is in none."""

    at: float
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...]
    session: str = ""


class Ids:
    """Hands out block ids that nobody else has."""

    def __init__(self) -> None:
        self._next = 0

    def take(self, count: int) -> tuple[int, ...]:
        begin, self._next = self._next, self._next + count
        return tuple(range(begin, self._next))


@dataclass(frozen=True, slots=True)
class Size:
    """Tokens, drawn lognormal. ``mean``: at least 1. ``spread``: standard deviation of the logarithm."""

    mean: float
    spread: float = 0.5

    def draw(self, chance: Random, least: int = 1) -> int:
        found = round(chance.lognormvariate(log(self.mean) - self.spread * self.spread / 2, self.spread))
        return min(max(least, found), MAX_TOKENS)


class Traffic(Protocol):
    """How a tenant's requests look, and when they come."""

    def sent(self, rate: float, seconds: float, chance: Random, ids: Ids) -> Iterator[Sent]:
        """The requests of 0..``seconds``, in any order: ``rate`` a second on average. ``ids``: where block ids come
        from."""
        ...


@dataclass(frozen=True, slots=True)
class Chats:
    """Conversations of ``turns`` requests, which begin at random (Poisson). ``system``: tokens that all of them share.
    ``first``: what the user says first (None: as ``own``). ``own``: what the user adds in each further turn, behind the
    answer before. ``think``: mean seconds between two turns, exponentially distributed."""

    system: int = 1000
    own: Size = Size(1100)
    output: Size = Size(130, 0.8)
    turns: int = 4
    think: float = 15.0
    first: Size | None = None

    def sent(self, rate: float, seconds: float, chance: Random, ids: Ids) -> Iterator[Sent]:
        system = ids.take(self.system // BLOCK)
        # Those that began before the run are in it with their later turns: it is the same at its beginning as later.
        at = -3 * self.turns * self.think
        number = 0
        while (at := at + chance.expovariate(rate / self.turns)) < seconds:
            number += 1
            yield from self._conversation(at, seconds, str(number), system, chance, ids)

    def _conversation(
        self, at: float, seconds: float, name: str, system: tuple[int, ...], chance: Random, ids: Ids
    ) -> Iterator[Sent]:
        blocks, context = system, self.system
        for turn in range(self.turns):
            prompt = context + (self.own if turn or self.first is None else self.first).draw(chance)
            output = self.output.draw(chance, LEAST_OUTPUT)
            whole = blocks[: context // BLOCK]
            blocks = whole + ids.take(-(-(prompt + output) // BLOCK) - len(whole))
            if 0 <= at < seconds:
                yield Sent(at, prompt, output, blocks, name)
            context = prompt + output
            at += chance.expovariate(1 / self.think) if self.think else 0.0


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests that share nothing but ``shared`` tokens, at random (Poisson). ``prompt``: tokens, ``shared``
    included."""

    prompt: Size
    output: Size = Size(130, 0.8)
    shared: int = 0

    def sent(self, rate: float, seconds: float, chance: Random, ids: Ids) -> Iterator[Sent]:
        shared, at = ids.take(self.shared // BLOCK), 0.0
        while (at := at + chance.expovariate(rate)) < seconds:
            yield self.one(at, shared, chance, ids)

    def one(self, at: float, shared: tuple[int, ...], chance: Random, ids: Ids) -> Sent:
        """One request at this time."""
        prompt = self.prompt.draw(chance, self.shared + 1)
        output = self.output.draw(chance, LEAST_OUTPUT)
        return Sent(at, prompt, output, shared + ids.take(-(-(prompt + output) // BLOCK) - len(shared)))


@dataclass(frozen=True, slots=True)
class Bursts:
    """``requests`` that come in bursts: one each ``every`` seconds, spread over ``over`` seconds."""

    requests: Requests
    every: float = 20.0
    over: float = 2.0

    def sent(self, rate: float, seconds: float, chance: Random, ids: Ids) -> Iterator[Sent]:
        shared = ids.take(self.requests.shared // BLOCK)
        begin = self.every / 2
        while begin < seconds:
            for _ in range(max(1, round(rate * self.every))):
                at = begin + self.over * chance.random()
                if at < seconds:
                    yield self.requests.one(at, shared, chance, ids)
            begin += self.every
