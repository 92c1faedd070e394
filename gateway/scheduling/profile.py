"""Filters in order, the herd guard, weighted scorers, one picker.

Rules:

- a filter is a rule: if it fails, the request fails; if it leaves nothing, there is no endpoint and the error says so;
- a scorer is advice: if it fails, it is silent (0 for all), which is counted; a score that is NaN or outside 0..1
  counts as 0, which is counted too;
- a picker decides: if it fails, the request fails;
- what a plugin returns is checked before it is used: nothing that was no candidate can be chosen.

Pure and synchronous: no clock, no I/O. Lists are aligned with the candidates (at 100 of them that costs half of a dict
per scorer), and nothing about an endpoint is copied.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from math import isfinite
from operator import add
from typing import Any

from gateway.core.observer import Observer
from gateway.errors import NoEndpoint, PluginFailed
from gateway.framework import Endpoint, Filter, Picker, Request, Scorer
from gateway.scheduling.herd import HerdGuard
from gateway.scheduling.trace import ProfileRun, Roster, Trace

RETRY_AFTER = 5.0
"""Seconds: engines that are out are tried again every 0.5 to 15 s, and a slow start lets more through each second."""

GUARD = "herd-guard"
"""The name under which a decision shows whom the guard has taken out."""


class Profile:
    """``filters``, ``scorers`` and ``picker`` are pairs of an instance's name and the plugin; scorers have a weight.
    ``weights``: by scorer. ``guarded``: all scorers compare loads, so that several deciders may choose the same."""

    def __init__(
        self,
        name: str,
        filters: Sequence[tuple[str, Filter]],
        scorers: Sequence[tuple[str, Scorer, float]],
        picker: tuple[str, Picker],
    ) -> None:
        self.name = name
        self.filters = tuple(filters)
        self.scorers = tuple(scorers)
        self.picker = picker
        self.weights = {name: weight for name, _, weight in self.scorers}
        self.guarded = bool(scorers) and all(getattr(scorer, "compares_load", False) for _, scorer, _ in self.scorers)


def run_profile(
    profiles: Mapping[str, Profile],
    request: Request,
    observer: Observer,
    trace: Trace | None,
    name: str,
    endpoints: Sequence[Endpoint],
    guard: HerdGuard | None = None,
) -> Sequence[Endpoint]:
    """Run the profile of this ``name`` over ``endpoints``. Best first, never empty. ``trace``: is given a run.
    ``guard``: None where nobody else places requests on these endpoints.

    Raises NoEndpoint or PluginFailed; LookupError if there is no such profile.
    """
    profile = profiles.get(name)
    if profile is None:
        raise LookupError(f"no profile {name!r}")
    # A tuple, as it mostly is: scores are aligned with it, so that no plugin may put it into another order.
    candidates, run = tuple(endpoints), None
    if trace is not None:
        key = request.model.name, name
        known = trace.rosters.get(key)
        if known is None or (known[0] is not candidates and known[0] != candidates):
            known = trace.rosters[key] = candidates, Roster.of(candidates)
        run = ProfileRun()
        run.profile, run.roster, run.weights = name, known[1], profile.weights
        trace.runs += (run,)
    if not candidates:
        raise NoEndpoint(
            f"model {request.model.name!r} has no endpoint left to try (profile {name!r})", retry_after=RETRY_AFTER
        )

    for plugin, filtering in profile.filters:
        try:
            kept = filtering.filter(request, candidates)
            if kept is candidates:
                continue
            if len(set(candidates).intersection(kept)) != len(kept):
                raise ValueError(_fault(kept))
        except Exception as error:
            raise _failed("filter", plugin, name, error, observer) from error
        if run is not None:
            run.filtered(plugin, candidates, kept)
        if not kept:
            raise NoEndpoint(
                f"no endpoint for model {request.model.name!r}: filter {plugin!r} of profile {name!r} removed "
                f"the {len(candidates)} left",
                retry_after=RETRY_AFTER,
            )
        candidates = tuple(kept)

    if guard is not None and profile.guarded:
        narrowed = guard.narrow(request, candidates)
        if narrowed is not candidates:
            if run is not None:
                run.filtered(GUARD, candidates, narrowed)
            candidates = narrowed

    count = len(candidates)
    scores: Sequence[float] | None = None
    for plugin, scorer, weight in profile.scorers:
        try:
            # What a plugin returns may be anything: 10**400 is an integer and no float, and one score of many.
            column: Sequence[Any] = scorer.score(request, candidates)
            if len(column) != count:
                raise ValueError(f"{len(column)} scores for {count} endpoints")
            # A NaN may be neither the least nor the greatest, but it is in the sum.
            if not (min(column) >= 0.0 and max(column) <= 1.0 and isfinite(sum(column))):
                column = [score if 0.0 <= score <= 1.0 else _refuse(plugin, observer) for score in column]
        except Exception as error:
            observer.plugin_failed("scorer", plugin, error)
            column = [0.0] * count
            if run is not None:
                run.silent = {**run.silent, plugin: f"{type(error).__name__}: {error}"}
        if weight != 1.0:
            weighted = [weight * score for score in column]
            scores = weighted if scores is None else list(map(add, scores, weighted))
        else:
            # A copy of the only column: what the picker does with it must not change what the scorer keeps.
            scores = list(column) if scores is None else list(map(add, scores, column))
        if run is not None:
            run.columns += (array("d", column),)

    plugin, picker = profile.picker
    try:
        picked = picker.pick(request, candidates, [0.0] * count if scores is None else scores)
        if len(set(candidates).intersection(picked)) != len(picked):
            raise ValueError(_fault(picked))
        if not picked:
            raise ValueError("picked nothing")
    except Exception as error:
        raise _failed("picker", plugin, name, error, observer) from error
    if run is not None:
        run.picked = picked[0].name
    return picked


def _failed(kind: str, name: str, profile: str, error: Exception, observer: Observer) -> PluginFailed:
    observer.plugin_failed(kind, name, error)
    # The plugin's own text goes to the log only: who reads this is a client.
    return PluginFailed(f"the {kind} {name!r} of profile {profile!r} failed ({type(error).__name__})")


def _fault(returned: Sequence[Endpoint]) -> str:
    """Of a plugin that did not return a subset of what it was given."""
    return "returned an endpoint twice" if len(set(returned)) != len(returned) else "returned what was no candidate"


def _refuse(name: str, observer: Observer) -> float:
    observer.score_refused(name)
    return 0.0
