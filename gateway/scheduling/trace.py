"""What a decision was made of: filled in while it is made, for ``/debug/decisions`` and for who asks why.

Every request's decision has one, so that it holds what was there anyway and puts nothing together: that is done where
it is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gateway.framework import Endpoint, Plan, Scored


@dataclass(slots=True)
class ProfileTrace:
    """One run of a profile; ends where it failed.

    ``filtered``: of each filter that ran, in order: its name, what it was given and what it kept. ``silent``: scorers
    that failed, and how. ``weights``: by scorer. ``columns``: by scorer, the scores of ``scored``'s endpoints.
    """

    name: str
    candidates: Sequence[Endpoint]
    weights: Mapping[str, float]
    filtered: list[tuple[str, Sequence[Endpoint], Sequence[Endpoint]]] = field(default_factory=list)
    silent: dict[str, str] = field(default_factory=dict)
    scored: Sequence[Scored] = ()
    columns: Mapping[str, Sequence[float]] = field(default_factory=dict)
    picked: Sequence[Endpoint] = ()

    @property
    def removed(self) -> list[tuple[str, tuple[Endpoint, ...]]]:
        """By each filter that ran, in order."""
        return [(name, gone(given, kept)) for name, given, kept in self.filtered]


def gone(given: Sequence[Endpoint], kept: Sequence[Endpoint]) -> tuple[Endpoint, ...]:
    """Those of ``given`` that a filter did not keep."""
    if kept is given:
        return ()
    still = set(kept)
    return tuple(endpoint for endpoint in given if endpoint not in still)


@dataclass(slots=True)
class Trace:
    """One call of ``Scheduler.schedule``: the profiles in the order in which the handler ran them."""

    handler: str = ""
    profiles: list[ProfileTrace] = field(default_factory=list)
    plan: Plan | None = None
