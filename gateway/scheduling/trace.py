"""What a decision was made of: filled in while it is made, for ``/debug/decisions`` and for who asks why.

Every request's decision has one. It holds names and numbers, which do not keep a dropped endpoint alive, and what can
be put together where it is read is put together there.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from gateway.framework import Endpoint

NONE: Mapping[str, Any] = MappingProxyType({})


class Roster(NamedTuple):
    """Candidates, without keeping them: their names, and their slots, by which matches are found."""

    names: Sequence[str]
    slots: Sequence[int]

    @classmethod
    def of(cls, endpoints: Sequence[Endpoint]) -> Roster:
        return cls(tuple([endpoint.name for endpoint in endpoints]), tuple([endpoint.slot for endpoint in endpoints]))


class ProfileRun:
    """One run of a profile; ends where it failed.

    ``roster``: of the endpoints that it was run over. ``weights``: by scorer. ``columns``: of each scorer in their
    order, the scores of the endpoints that the filters left; none where it came to none. ``removed``: by each filter
    that removed any, in order, their names. ``scored``: names of the endpoints that the filters left; None: all.
    ``silent``: scorers that failed, and how. ``picked``: the best one's name; None where it came to none.

    Each request makes one, and most of it stays as the class has it: whoever makes one sets the rest.
    """

    profile: str
    roster: Roster
    weights: Mapping[str, float]
    columns: tuple[array[float], ...] = ()
    removed: Sequence[tuple[str, Sequence[str]]] = ()
    scored: Sequence[str] | None = None
    silent: Mapping[str, str] = NONE
    picked: str | None = None

    def filtered(self, name: str, given: Sequence[Endpoint], kept: Sequence[Endpoint]) -> None:
        """The filter of this ``name`` kept some of those that it was ``given``."""
        still = set(kept)
        gone = tuple([endpoint.name for endpoint in given if endpoint not in still])
        self.removed = (*self.removed, (name, gone))
        self.scored = tuple([endpoint.name for endpoint in kept])

    def scores(self) -> dict[str, tuple[float, Mapping[str, float]]]:
        """By name of the endpoints that were scored: the weighted sum, and each scorer's own score, 0..1."""
        if self.weights and not self.columns:
            return {}
        names = self.scored
        if names is None:
            names = self.roster.names
        scores: dict[str, tuple[float, Mapping[str, float]]] = {}
        for number, name in enumerate(names):
            each = {scorer: column[number] for scorer, column in zip(self.weights, self.columns, strict=True)}
            scores[name] = sum(weight * each[scorer] for scorer, weight in self.weights.items()), each
        return scores


Rosters: TypeAlias = dict[tuple[str, str], tuple[Sequence[Endpoint], Roster]]
"""By model and profile, the last candidates, and their roster: many runs over the same ones need it made once. It holds
endpoints: clear it when one is dropped."""


class Trace:
    """One call of ``Scheduler.schedule``.

    ``rosters``: those known from before, to which new ones are added. ``runs``: in the order in which the handler ran
    the profiles.
    """

    __slots__ = ("rosters", "runs")

    def __init__(self, rosters: Rosters) -> None:
        self.rosters = rosters
        self.runs: tuple[ProfileRun, ...] = ()
