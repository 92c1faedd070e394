"""A generated workload of agents: sessions whose prompts grow turn by turn.

A session begins with a system prompt and tool definitions, which all sessions share, and a task of its own. The prompt
of each further turn holds the whole session so far: the last answer, and what the tools returned. It comes some seconds
after that answer, when the tools are done. A session ends when its next prompt would be too long.

The default sizes are those of coding agents. The sessions of Claude Code that kv-cache-tester has published
(Apache-2.0) have 23 turns on average, prompts of 65,000 tokens (p90 93,000) where they are cut at 100,000, and answers
of 390; 93 % of a prompt was in earlier prompts.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import log
from statistics import fmean

from gateway.commands.replay.workload import LARGEST_BLOCK, MAX_TOKENS, VLLM_BLOCK, TraceCall
from gateway.errors import ConfigError

MOST_SESSIONS = 100_000
"""Sessions of one run at most: they take some gigabytes."""

LONGEST_GAP = 1e6
"""Seconds: eleven days. With longer gaps no two requests overlap."""

MOST_TURNS = 10_000
"""Turns of a session at most, on average, so that a run with a mistyped size ends."""

TASK_SPREAD, RESULT_SPREAD, OUTPUT_SPREAD = 0.5, 1.0, 0.8
"""Standard deviations of the logarithm of the size of a task, of tool results, and of an answer. Most of them are
short; a file that is read is long."""

MEAN_GAP = 1 / 6
"""The mean gap as a share of the longest. Gaps are exponential, and one in 400 is cut off."""


@dataclass(frozen=True, slots=True)
class AgentShape:
    """The shape of the workload; sizes are in tokens.

    ``sessions``: their number. ``live``: concurrent sessions, if no rate is given; None: all. ``shared``: the system
    prompt and the tool definitions. ``begin``: mean of a session's first prompt, including ``shared``. ``longest``: the
    longest prompt. ``results``: mean of what a turn adds beside the previous answer. ``output``: mean of an answer.
    ``gap``: the longest time in seconds from the end of an answer to the next turn. ``block``: tokens of a block. With
    256 instead of vLLM's 16, hit rates change by less than half a point and a run takes a sixth of the time.
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
    """One turn. ``tokens``: length of the prompt. ``gap``: seconds before it."""

    tokens: int
    output: int
    gap: float


class Agents:
    """A ``Workload`` of ``shape``, generated from ``seed``. Sizes and gaps belong to the session and do not depend on
    when answers come.

    ``rate``: requests a second on average, from the first session's start to the last one's; sessions begin at random
    (Poisson) at the rate that this takes. None: a closed loop of ``shape.live`` sessions. They begin within the
    duration of one session, and each is replaced when it ends.
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
        self._open: dict[TraceCall, tuple[int, int]] = {}
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
        """The number of calls."""
        return sum(map(len, self._sessions))

    def start(self) -> Sequence[TraceCall]:
        return self._begin

    def answered(self, call: TraceCall, at: float) -> Sequence[TraceCall]:
        session, turn = self._open.pop(call)
        if turn + 1 == len(self._sessions[session]):
            if self._begun == len(self._sessions):
                return ()
            session, turn = self._begun, -1
            self._begun += 1
        return (self._turn(at + self._sessions[session][turn + 1].gap, session, turn + 1),)

    def _turn(self, at: float, session: int, number: int) -> TraceCall:
        turn = self._sessions[session][number]
        # A session's text only grows, so its blocks are numbered once; the answer's too, which the next prompt has.
        blocks = -(-(turn.tokens + turn.output) // self.block_size) - len(self._shared)
        first = self._first_block[session]
        call = TraceCall(at, turn.tokens, turn.output, (*self._shared, *range(first, first + blocks)), str(session))
        self._open[call] = session, number
        return call


def _session(shape: AgentShape, chance: random.Random) -> list[_Turn]:
    """The turns of one session, at least one."""
    turns: list[_Turn] = []
    tokens = min(shape.longest, shape.shared + _drawn(shape.begin - shape.shared, TASK_SPREAD, chance))
    while tokens <= shape.longest:
        output = min(_drawn(shape.output, OUTPUT_SPREAD, chance), MAX_TOKENS)
        gap = min(shape.gap, chance.expovariate(1.0) * MEAN_GAP * shape.gap)
        turns.append(_Turn(tokens, output, gap))
        tokens += output + _drawn(shape.results, RESULT_SPREAD, chance)
    return turns


def _drawn(mean: int, spread: float, chance: random.Random) -> int:
    """Draw a lognormal size of at least 1."""
    return max(1, round(chance.lognormvariate(log(mean) - spread * spread / 2, spread)))
