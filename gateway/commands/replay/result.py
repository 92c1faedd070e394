"""The result of a replay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.commands.replay.workload import Call

__all__ = ["Record", "Result"]


@dataclass(slots=True)
class Record:
    """The record of one call. Times are seconds of virtual time after its arrival; tokens are prompt tokens."""

    call: Call
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
    lost: Sequence[Call] = ()
    """Calls that were not answered because their engine died: the answer had begun, or no other engine could give
    it."""
    retried: int = 0
    """Number of legs that were sent again because an engine died."""
    scheduled: bool = False
    """Whether engines come and go; otherwise no call is lost."""
    apart: bool = False
    """Whether some engines have a role, so that prompts may be computed apart."""
