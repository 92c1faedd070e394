"""A generated workload: agents at work, in sessions whose prompts grow.

Each session begins with a system prompt and tool definitions that all sessions share, and a task of its own. Each
further turn holds all that was said, the answer before it, and what the tools gave; it comes when they are done, some
seconds after that answer. A session ends where its next prompt would be too long. In the sizes of coding agents: the
sessions of Claude Code that kv-cache-tester has published (Apache-2.0) have 23 turns on average, prompts of 65,000
tokens (p90 93,000) where they are cut at 100,000, answers of 390, and prompts of which 93 % were there before.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import log
from statistics import fmean

from gateway.errors import ConfigError
from gateway.replay.workload import LARGEST_BLOCK, MAX_TOKENS, VLLM_BLOCK, Call

MOST_SESSIONS = 100_000
"""Of one run: some gigabytes."""

LONGEST_GAP = 1e6
"""Seconds, eleven days: with longer gaps no two requests meet."""

MOST_TURNS = 10_000
"""Of a session, on average: a mistyped size must not make a run without end."""

TASK_SPREAD, RESULT_SPREAD, OUTPUT_SPREAD = 0.5, 1.0, 0.8
"""Standard deviations of the logarithm of a task, of what a turn's tools give, and of an answer: most of them are
short, and a file that is read is long."""

MEAN_GAP = 1 / 6
"""Of the longest gap: the mean. Exponential, and one in 400 is cut off."""


@dataclass(frozen=True, slots=True)
class AgentShape:
    """Sizes in tokens.

    ``sessions``: in all. ``live``: at once, where no rate is given; None: all. ``shared``: the system prompt and the
    tools' definitions. ``begin``: mean of a session's first prompt, with these. ``longest``: no prompt is longer.
    ``results``: mean of what a turn adds beside the answer before it. ``output``: mean of an answer. ``gap``: seconds,
    at most, from the end of an answer to the next turn. ``block``: tokens of a block; with 256 in the place of vLLM's
    16 hit rates are within half a point, and a run takes a sixth of the time.
    """

    sessions: int = 100
    live: int | None = None
    shared: int = 12_000
    begin: int = 20_000
    longest: int = 100_000
    results: int = 2_500
    output: int = 400
    gap: float = 60.0
    block: int = VLLM_BLOCK

    def __post_init__(self) -> None:
        if not 1 <= self.sessions <= MOST_SESSIONS:
            raise ConfigError(f"sessions must be in 1..{MOST_SESSIONS}")
        if self.live is not None and not 1 <= self.live <= self.sessions:
            raise ConfigError(f"live must be in 1..{self.sessions}, the sessions in all")
        for name, least in (("shared", 0), ("begin", 1), ("longest", 1), ("results", 1), ("output", 1)):
            if not least <= getattr(self, name) <= MAX_TOKENS:
                raise ConfigError(f"{name} must be in {least}..{MAX_TOKENS} tokens")
        if not self.shared < self.begin <= self.longest:
            raise ConfigError("shared must be below begin, and begin at most longest")
        if (self.longest - self.begin) / (self.results + self.output) > MOST_TURNS:
            raise ConfigError(f"a session must have at most {MOST_TURNS} turns: results and output are too small")
        if not 1 <= self.block <= LARGEST_BLOCK:
            raise ConfigError(f"block must be in 1..{LARGEST_BLOCK} tokens")
        if not 0 <= self.gap <= LONGEST_GAP:
            raise ConfigError(f"gap must be in 0..{LONGEST_GAP:g} seconds")


@dataclass(frozen=True, slots=True)
class _Turn:
    """``tokens``: of the prompt. ``gap``: seconds before it."""

    tokens: int
    output: int
    gap: float


class Agents:
    """A ``Workload`` of ``shape``, by ``seed``. Sizes and gaps are each session's own, whatever the answers take.

    ``rate``: requests a second on average, from the first session's start to the last one's: sessions begin at random
    (Poisson), so many a second as that takes. None: a closed loop of ``shape.live`` sessions, which begin within the
    time of one; where one ends another begins.
    """

    name = "agents"

    def __init__(self, shape: AgentShape, *, rate: float | None = None, seed: int = 0) -> None:
        if rate is not None and not rate > 0:
            raise ConfigError("the rate must be above 0 requests/s")
        self._shape = shape
        self.block_size = shape.block
        self._sessions = [_session(shape, random.Random(f"{seed}/{number}")) for number in range(shape.sessions)]
        self._shared = tuple(range(shape.shared // self.block_size))
        own = (-(-(turns[-1].tokens + turns[-1].output) // self.block_size) for turns in self._sessions)
        self._first_block = list(accumulate(own, initial=len(self._shared)))
        self._open: dict[Call, tuple[int, int]] = {}
        chance = random.Random(seed)
        if rate is None:
            begin = shape.sessions if shape.live is None else shape.live
            life = fmean(sum(turn.gap for turn in turns) for turns in self._sessions)
            times = sorted(chance.random() * life for _ in range(begin))
        else:
            sessions_a_second = rate / fmean(map(len, self._sessions))
            times = list(accumulate(chance.expovariate(sessions_a_second) for _ in self._sessions))
        self._begun = len(times)
        self._begin = [self._turn(at, number, 0) for number, at in enumerate(times)]

    @property
    def requests(self) -> int:
        """In all."""
        return sum(map(len, self._sessions))

    def start(self) -> Sequence[Call]:
        return self._begin

    def answered(self, call: Call, at: float) -> Sequence[Call]:
        session, turn = self._open.pop(call)
        if turn + 1 == len(self._sessions[session]):
            if self._begun == len(self._sessions):
                return ()
            session, turn = self._begun, -1
            self._begun += 1
        return (self._turn(at + self._sessions[session][turn + 1].gap, session, turn + 1),)

    def _turn(self, at: float, session: int, number: int) -> Call:
        turn = self._sessions[session][number]
        # A session's text only grows, so that its blocks are numbered once; with the answer's, which the next turn has.
        blocks = -(-(turn.tokens + turn.output) // self.block_size) - len(self._shared)
        first = self._first_block[session]
        call = Call(at, turn.tokens, turn.output, (*self._shared, *range(first, first + blocks)), str(session))
        self._open[call] = session, number
        return call


def _session(shape: AgentShape, chance: random.Random) -> list[_Turn]:
    """At least one turn."""
    turns: list[_Turn] = []
    tokens = min(shape.longest, shape.shared + _drawn(shape.begin - shape.shared, TASK_SPREAD, chance))
    while tokens <= shape.longest:
        output = min(_drawn(shape.output, OUTPUT_SPREAD, chance), MAX_TOKENS)
        gap = min(shape.gap, chance.expovariate(1.0) * MEAN_GAP * shape.gap)
        turns.append(_Turn(tokens, output, gap))
        tokens += output + _drawn(shape.results, RESULT_SPREAD, chance)
    return turns


def _drawn(mean: int, spread: float, chance: random.Random) -> int:
    """Lognormal, at least 1."""
    return max(1, round(chance.lognormvariate(log(mean) - spread * spread / 2, spread)))
