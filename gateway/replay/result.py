"""What a replay measured."""

from __future__ import annotations

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
