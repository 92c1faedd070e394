"""The workload of a replay (the requests, when they come, and what they share), and the result of one run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from gateway.framework.request import NO_TENANT, Tenant

MAX_TOKENS = 1 << 24
"""Tokens of one prompt or answer at most: more than any model's context, so that a wrong unit is found before memory is
full."""

VLLM_BLOCK = 16
"""Tokens of a block if the workload does not say: vLLM's default."""

LARGEST_BLOCK = 512
"""Tokens of the largest block: Mooncake's. With larger blocks the cache of an engine cannot be modelled."""


@dataclass(slots=True, eq=False)
class TraceCall:
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
    tenant         whom it is for.
    band           of those who wait, a higher one goes first.
    """

    at: float
    input_tokens: int
    output_tokens: int
    blocks: Sequence[int]
    session: str | None = None
    traffic: str = ""
    priority: int = 0
    tenant: Tenant = NO_TENANT
    band: int = 0


class Workload(Protocol):
    """A source of calls. An object serves one run only, since a closed loop may keep state."""

    name: str
    block_size: int
    """Tokens of a block (512 in Mooncake's traces)."""

    def start(self) -> Sequence[TraceCall]:
        """The calls that are known from the beginning, ordered by `at`."""
        ...

    def answered(self, call: TraceCall, at: float) -> Sequence[TraceCall]:
        """The calls that follow a call answered at `at` (a closed loop); their think time is in their `at`."""
        ...


@dataclass(slots=True)
class Record:
    """The record of one call. Times are seconds of virtual time after its arrival; tokens are prompt tokens."""

    call: TraceCall
    endpoint: int
    ttft: float
    finished: float
    hit_tokens: int
    """Tokens that the engine took from its caches, on GPU and host."""
    expected_hit: int
    """Tokens that the gateway expected to be cached there when it placed the call."""
    split: bool = False
    """Whether the prompt was computed on another engine; the hits are then that engine's."""


@dataclass(slots=True)
class Result:
    """One run: one policy, one workload."""

    policy: str
    seed: int
    records: list[Record]
    """The records, in the order in which the calls ended."""
    busy: list[float]
    """Seconds that each engine was computing, by endpoint."""
    seconds: float
    """Seconds of virtual time from the first arrival to the last end."""
    cpu_seconds: float
    """CPU seconds of the replay itself."""
    refused: Sequence[tuple[TraceCall, str]] = ()
    """Calls that a gate refused, each with a short word for why."""
    lost: Sequence[TraceCall] = ()
    """Calls that were not answered because their engine died: the answer had begun, or no other engine could give
    it."""
    retried: int = 0
    """Number of legs that were sent again because an engine died."""
    scheduled: bool = False
    """Whether engines come and go; otherwise no call is lost."""
    apart: bool = False
    """Whether some engines have a role, so that prompts may be computed apart."""
