"""A generated workload: groups of users share a long system prompt and hold conversations.

Its shape is that of llm-d's benchmark of shared prefixes (llm-d-kv-cache, benchmarking/37-capacity: 150 groups of 5
users, 6,000 shared tokens and 1,200 of their own, 1,000 generated). A conversation's first turn comes at a given time
or, in a closed loop, as soon as its user is there. Each further turn comes a think time after the previous answer. Its
prompt holds the whole conversation, the answers included, so a policy that keeps a conversation on one engine hits
their blocks.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from gateway.commands.replay.workload import LARGEST_BLOCK, MAX_TOKENS, VLLM_BLOCK, TraceCall
from gateway.errors import ConfigError

MAX_REQUESTS = 10_000_000
"""Requests of one run at most: they take some gigabytes, and more would take too long."""

MAX_THINK = 1e6
"""Seconds: eleven days. With longer pauses no two requests overlap."""


@dataclass(frozen=True, slots=True)
class Shape:
    """``groups`` x ``users`` users; each holds ``rounds`` conversations of ``turns`` requests, one after the other.

    ``shared``: tokens of a group's system prompt. ``own``: tokens that a user adds in each turn. ``output``: tokens of
    each answer. ``think``: mean seconds between an answer and the next request, exponentially distributed. ``block``:
    tokens of a block. With more than vLLM's 16 a run is faster, and a prefix shorter than a block cannot be shared.
    """

    groups: int = 150
    users: int = 5
    rounds: int = 8
    turns: int = 1
    shared: int = 6000
    own: int = 1200
    output: int = 1000
    think: float = 10.0
    block: int = VLLM_BLOCK

    def __post_init__(self) -> None:
        for name in ("groups", "users", "rounds", "turns", "own", "output"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1")
        if self.shared < 0:
            raise ConfigError("shared must be at least 0 tokens")
        for name in ("shared", "own", "output"):
            if getattr(self, name) > MAX_TOKENS:
                raise ConfigError(f"{name} must be at most {MAX_TOKENS} tokens")
        if self.requests > MAX_REQUESTS:
            raise ConfigError(f"groups x users x rounds x turns must be at most {MAX_REQUESTS} requests")
        if not 1 <= self.block <= LARGEST_BLOCK:
            raise ConfigError(f"block must be in 1..{LARGEST_BLOCK} tokens")
        if not 0 <= self.think <= MAX_THINK:
            raise ConfigError(f"think must be in 0..{MAX_THINK:g} seconds")

    @property
    def conversations(self) -> int:
        return self.groups * self.users * self.rounds

    @property
    def requests(self) -> int:
        return self.conversations * self.turns


class Groups:
    """A ``Workload`` of ``shape``, generated from ``seed``.

    ``rate``: requests a second over the whole run: conversations begin at random (Poisson) at ``rate / turns`` a
    second, with the users in random order. None: a closed loop. Every user begins within the first think time and holds
    all rounds one after the other, so that the engines determine the load.
    """

    name = "groups"

    def __init__(self, shape: Shape, *, rate: float | None = None, seed: int = 0) -> None:
        if rate is not None and not rate > 0:
            raise ConfigError("the rate must be above 0 requests/s")
        self._shape = shape
        self.block_size = shape.block
        self._seed = seed
        self._chance = random.Random(seed)
        self._closed = rate is None
        self._next_block = 0
        self._systems = [self._blocks(shape.shared // self.block_size) for _ in range(shape.groups)]
        self._open: dict[TraceCall, tuple[int, int, int]] = {}
        """The user, round and turn of each call that is not answered."""
        users = shape.groups * shape.users
        if rate is None:
            times = [self._pause(user, 0, 0) for user in range(users)]
        else:
            gaps = (self._chance.expovariate(rate / shape.turns) for _ in range(shape.conversations))
            times = list(accumulate(gaps))
        order: list[int] = []
        while len(order) < len(times):
            order += self._chance.sample(range(users), users)
        self._begin = sorted(
            (self._first(at, user, place // users) for place, (at, user) in enumerate(zip(times, order, strict=True))),
            key=lambda call: call.at,
        )

    def start(self) -> Sequence[TraceCall]:
        return self._begin

    def answered(self, call: TraceCall, at: float) -> Sequence[TraceCall]:
        user, round_, turn = self._open.pop(call)
        turn += 1
        if turn < self._shape.turns:
            context = call.input_tokens + call.output_tokens
            return [self._turn(at + self._pause(user, round_, turn), user, round_, turn, context, call.blocks)]
        round_ += 1
        if self._closed and round_ < self._shape.rounds:
            return [self._first(at + self._pause(user, round_, 0), user, round_)]
        return []

    def _first(self, at: float, user: int, round_: int) -> TraceCall:
        system = self._systems[user // self._shape.users]
        return self._turn(at, user, round_, 0, self._shape.shared, system)

    def _turn(self, at: float, user: int, round_: int, turn: int, context: int, held: Sequence[int]) -> TraceCall:
        """``context``: tokens of the conversation before this turn. ``held``: its whole blocks."""
        shape = self._shape
        tokens = context + shape.own
        # With the answer's blocks, which the engine that generates it holds; a partial last block is not cached.
        whole = tuple(held[: context // self.block_size])
        blocks = whole + self._blocks(-(-(tokens + shape.output) // self.block_size) - len(whole))
        call = TraceCall(at, tokens, shape.output, blocks, f"{user}-{round_}")
        self._open[call] = user, round_, turn
        return call

    def _blocks(self, count: int) -> tuple[int, ...]:
        begin, self._next_block = self._next_block, self._next_block + count
        return tuple(range(begin, self._next_block))

    def _pause(self, user: int, round_: int, turn: int) -> float:
        """Seconds before this turn. Each pause has a seed of its own, whatever the order of the answers, so that
        policies are compared on the same pauses."""
        if not self._shape.think:
            return 0.0
        return random.Random(f"{self._seed}/{user}/{round_}/{turn}").expovariate(1 / self._shape.think)
