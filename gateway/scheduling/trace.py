"""What a decision was made of: filled in while it is made, for ``kvgate explain``. Costs nothing when not asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gateway.framework import Endpoint, Plan, Scored


@dataclass(slots=True)
class ProfileTrace:
    """One run of a profile; ends where it failed.

    ``removed``: by each filter that ran, in order. ``silent``: scorers that failed, and how. ``weights``: by scorer.
    """

    name: str
    candidates: Sequence[Endpoint]
    weights: Mapping[str, float]
    removed: list[tuple[str, tuple[Endpoint, ...]]] = field(default_factory=list)
    silent: dict[str, str] = field(default_factory=dict)
    scored: Sequence[Scored] = ()
    picked: Sequence[Endpoint] = ()


@dataclass(slots=True)
class Trace:
    """One call of ``Scheduler.schedule``: the profiles in the order in which the handler ran them."""

    handler: str = ""
    profiles: list[ProfileTrace] = field(default_factory=list)
    plan: Plan | None = None
