"""Filters in order, weighted scorers, one picker.

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

from collections.abc import Sequence
from itertools import repeat

from gateway.core.observer import Observer
from gateway.errors import NoEndpoint, PluginFailed
from gateway.framework import Endpoint, Filter, Picker, Request, Scored, Scorer
from gateway.scheduling.trace import ProfileTrace

RETRY_AFTER = 5.0
"""Seconds: engines that are out are tried again every 0.5 to 15 s, and a slow start lets more through each second."""


class Profile:
    """``filters``, ``scorers`` and ``picker`` are pairs of an instance's name and the plugin; scorers have a weight."""

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
        self._weights = {name: weight for name, _, weight in self.scorers}

    def run(
        self, request: Request, endpoints: Sequence[Endpoint], observer: Observer, trace: ProfileTrace | None = None
    ) -> Sequence[Endpoint]:
        """Best first, never empty. Raises NoEndpoint or PluginFailed."""
        if not endpoints:
            raise NoEndpoint(
                f"model {request.model.name!r} has no endpoint left to try (profile {self.name!r})",
                retry_after=RETRY_AFTER,
            )
        candidates = self._filter(request, endpoints, observer, trace)
        scored = self._score(request, candidates, observer, trace)
        return self._pick(request, scored, candidates, observer, trace)

    def trace(self, endpoints: Sequence[Endpoint]) -> ProfileTrace:
        """An empty trace for a run over ``endpoints``."""
        return ProfileTrace(self.name, endpoints, self._weights)

    def _filter(
        self, request: Request, candidates: Sequence[Endpoint], observer: Observer, trace: ProfileTrace | None
    ) -> Sequence[Endpoint]:
        for name, plugin in self.filters:
            try:
                kept = plugin.filter(request, candidates)
                if kept is not candidates:
                    _require_subset(kept, candidates)
            except Exception as error:
                raise self._failed("filter", name, error, observer) from error
            if trace is not None and kept is not candidates:
                trace.filtered = (*trace.filtered, (name, candidates, kept))
            if not kept:
                raise NoEndpoint(
                    f"no endpoint for model {request.model.name!r}: filter {name!r} of profile {self.name!r} removed "
                    f"the {len(candidates)} left",
                    retry_after=RETRY_AFTER,
                )
            candidates = kept
        return candidates

    def _score(
        self, request: Request, candidates: Sequence[Endpoint], observer: Observer, trace: ProfileTrace | None
    ) -> Sequence[Scored]:
        totals: Sequence[float] | None = None
        columns: dict[str, Sequence[float]] = {}
        for name, plugin, weight in self.scorers:
            try:
                column = plugin.score(request, candidates)
                if len(column) != len(candidates):
                    raise ValueError(f"{len(column)} scores for {len(candidates)} endpoints")
                # Not a min/max clamp: that lets NaN through, which poisons every comparison after it.
                if not all([0.0 <= score <= 1.0 for score in column]):  # noqa: C419 -- a generator takes twice as long
                    column = [score if 0.0 <= score <= 1.0 else _refuse(name, observer) for score in column]
            except Exception as error:
                observer.plugin_failed("scorer", name, error)
                column = [0.0] * len(candidates)
                if trace is not None:
                    trace.silent = {**trace.silent, name: f"{type(error).__name__}: {error}"}
            columns[name] = column
            if totals is None:
                totals = [weight * score for score in column]
            else:
                totals = [total + weight * score for total, score in zip(totals, column, strict=True)]
        if totals is None:
            totals = [0.0] * len(candidates)
        scored = list(map(Scored, candidates, totals, repeat(columns), range(len(candidates))))
        if trace is not None:
            trace.scored, trace.columns = scored, columns
        return scored

    def _pick(
        self,
        request: Request,
        scored: Sequence[Scored],
        candidates: Sequence[Endpoint],
        observer: Observer,
        trace: ProfileTrace | None,
    ) -> Sequence[Endpoint]:
        name, plugin = self.picker
        try:
            picked = plugin.pick(request, scored)
            _require_subset(picked, candidates)
            if not picked:
                raise ValueError("picked nothing")
        except Exception as error:
            raise self._failed("picker", name, error, observer) from error
        if trace is not None:
            trace.picked = picked
        return picked

    def _failed(self, kind: str, name: str, error: Exception, observer: Observer) -> PluginFailed:
        observer.plugin_failed(kind, name, error)
        # The plugin's own text goes to the log only: who reads this is a client.
        return PluginFailed(f"the {kind} {name!r} of profile {self.name!r} failed ({type(error).__name__})")


def _require_subset(returned: Sequence[Endpoint], candidates: Sequence[Endpoint]) -> None:
    if len(set(candidates).intersection(returned)) != len(returned):
        twice = len(set(returned)) != len(returned)
        raise ValueError("returned an endpoint twice" if twice else "returned what was no candidate")


def _refuse(name: str, observer: Observer) -> float:
    observer.score_refused(name)
    return 0.0
