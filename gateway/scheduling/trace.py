"""What a decision was made of: filled in while it is made, for ``/debug/decisions`` and for who asks why.

Every request's decision has one, so that it holds what was there anyway and puts nothing together: that is done where
it is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from gateway.framework import Endpoint, Plan, Scored

NONE: Mapping[str, Any] = MappingProxyType({})


class ProfileTrace:
    """One run of a profile; ends where it failed.

    ``filtered``: of each filter that did not keep all as it was, in order: its name, what it was given and what it
    kept. ``silent``: scorers that failed, and how. ``weights``: by scorer. ``columns``: by scorer, the scores of
    ``scored``'s endpoints.
    """

    __slots__ = ("candidates", "columns", "filtered", "name", "picked", "scored", "silent", "weights")

    def __init__(self, name: str, candidates: Sequence[Endpoint], weights: Mapping[str, float]) -> None:
        self.name = name
        self.candidates = candidates
        self.weights = weights
        self.filtered: Sequence[tuple[str, Sequence[Endpoint], Sequence[Endpoint]]] = ()
        self.silent: Mapping[str, str] = NONE
        self.scored: Sequence[Scored] = ()
        self.columns: Mapping[str, Sequence[float]] = NONE
        self.picked: Sequence[Endpoint] = ()

    @property
    def removed(self) -> list[tuple[str, tuple[Endpoint, ...]]]:
        """By each filter that removed any, in order."""
        return [(name, gone(given, kept)) for name, given, kept in self.filtered]


def gone(given: Sequence[Endpoint], kept: Sequence[Endpoint]) -> tuple[Endpoint, ...]:
    """Those of ``given`` that a filter did not keep."""
    still = set(kept)
    return tuple(endpoint for endpoint in given if endpoint not in still)


@dataclass(slots=True)
class Trace:
    """One call of ``Scheduler.schedule``: the profiles in the order in which the handler ran them."""

    handler: str = ""
    profiles: list[ProfileTrace] = field(default_factory=list)
    plan: Plan | None = None
