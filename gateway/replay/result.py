"""What a replay measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.replay.workload import Call

__all__ = ["Record", "Result"]


@dataclass(slots=True)
class Record:
    """How one call went. Times are in seconds of virtual time after its arrival; tokens are of the prompt."""

    call: Call
    endpoint: int
    ttft: float
    finished: float
    hit_tokens: int
    """What the engine took from its caches, GPU and host."""
    expected_hit: int
    """What the gateway expected there when it placed the call."""
    split: bool = False
    """Whether its prompt was computed apart, on another engine: then the hits are that one's."""


@dataclass(slots=True)
class Result:
    """One policy's run over one workload."""

    policy: str
    seed: int
    records: list[Record]
    """In the order in which the calls finished."""
    busy: list[float]
    """Seconds that each engine computed, by endpoint."""
    seconds: float
    """Virtual time from the first arrival to the last end."""
    cpu_seconds: float
    """What the replay itself took."""
    lost: Sequence[Call] = ()
    """Calls whose engine died and that had no answer: it had begun, or nobody else could give it."""
    retried: int = 0
    """Legs that were made again, or elsewhere, since an engine died."""
    scheduled: bool = False
    """Whether engines come and go: else nothing is lost."""
    apart: bool = False
    """Whether some engines have a role: so that prompts may be computed apart."""
