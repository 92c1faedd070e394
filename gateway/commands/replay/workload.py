"""The workload of a replay: the requests, when they come, and what they share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

__all__ = ["LARGEST_BLOCK", "MAX_TOKENS", "VLLM_BLOCK", "Call", "Workload"]

MAX_TOKENS = 1 << 24
"""Tokens of one prompt or answer at most: more than any model's context, so that a wrong unit is found before memory is
full."""

VLLM_BLOCK = 16
"""Tokens of a block if the workload does not say: vLLM's default."""

LARGEST_BLOCK = 512
"""Tokens of the largest block: Mooncake's. With larger blocks the cache of an engine cannot be modelled."""


@dataclass(slots=True, eq=False)
class Call:
    """One request of a workload.

    at             arrival at the gateway, in seconds of virtual time.
    input_tokens   of the prompt, at least 1.
    output_tokens  what the engine generates, at least 1.
    blocks         ids of the prompt's blocks, the last and partial one among them; each id stands for its whole prefix
                   (as in Mooncake's `hash_ids`). They may go on with the blocks of the output, so that a next turn
                   can hit what was generated.
    session        what a client would send to be recognised again.
    traffic        its class, which has figures and may have objectives of its own; empty: none.
    priority       as a client would send it: less is sooner.
    """

    at: float
    input_tokens: int
    output_tokens: int
    blocks: Sequence[int]
    session: str | None = None
    traffic: str = ""
    priority: int = 0


class Workload(Protocol):
    """A source of calls. An object serves one run only, since a closed loop may keep state."""

    name: str
    block_size: int
    """Tokens of a block (512 in Mooncake's traces)."""

    def start(self) -> Sequence[Call]:
        """The calls that are known from the beginning, ordered by `at`."""
        ...

    def answered(self, call: Call, at: float) -> Sequence[Call]:
        """The calls that follow a call answered at `at` (a closed loop); their think time is in their `at`."""
        ...
