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

from array import array
from collections.abc import Sequence

from gateway.core.observer import Observer
from gateway.errors import NoEndpoint, PluginFailed
from gateway.framework import Endpoint, Filter, Picker, Request, Scorer
from gateway.scheduling.trace import Step, Trace

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
        self, request: Request, endpoints: Sequence[Endpoint], observer: Observer, trace: Trace | None = None
    ) -> Sequence[Endpoint]:
        """Best first, never empty. ``trace``: is given a step. Raises NoEndpoint or PluginFailed."""
        step = None
        if trace is not None:
            step = Step(self.name, endpoints, self._weights)
            trace.steps.append(step)
        if not endpoints:
            raise NoEndpoint(
                f"model {request.model.name!r} has no endpoint left to try (profile {self.name!r})",
                retry_after=RETRY_AFTER,
            )

        candidates = endpoints
        for name, filtering in self.filters:
            try:
                kept = filtering.filter(request, candidates)
                if kept is candidates:
                    continue
                if len(set(candidates).intersection(kept)) != len(kept):
                    raise ValueError(_fault(kept))
            except Exception as error:
                raise self._failed("filter", name, error, observer) from error
            if step is not None:
                step.filtered(name, candidates, kept)
            if not kept:
                raise NoEndpoint(
                    f"no endpoint for model {request.model.name!r}: filter {name!r} of profile {self.name!r} removed "
                    f"the {len(candidates)} left",
                    retry_after=RETRY_AFTER,
                )
            candidates = kept

        scores = [0.0] * len(candidates)
        for name, scorer, weight in self.scorers:
            try:
                column = scorer.score(request, candidates)
                if len(column) != len(candidates):
                    raise ValueError(f"{len(column)} scores for {len(candidates)} endpoints")
                for score in column:
                    # Not a min/max clamp: that lets NaN through, which poisons every comparison after it.
                    if not 0.0 <= score <= 1.0:
                        column = [score if 0.0 <= score <= 1.0 else _refuse(name, observer) for score in column]
                        break
            except Exception as error:
                observer.plugin_failed("scorer", name, error)
                column = [0.0] * len(candidates)
                if step is not None:
                    step.silent = {**step.silent, name: f"{type(error).__name__}: {error}"}
            for number, score in enumerate(column):
                scores[number] += weight * score
            if step is not None:
                step.columns[name] = array("d", column)

        name, picker = self.picker
        try:
            picked = picker.pick(request, candidates, scores)
            if len(set(candidates).intersection(picked)) != len(picked):
                raise ValueError(_fault(picked))
            if not picked:
                raise ValueError("picked nothing")
        except Exception as error:
            raise self._failed("picker", name, error, observer) from error
        if step is not None:
            step.picked = picked[0].name
        return picked

    def _failed(self, kind: str, name: str, error: Exception, observer: Observer) -> PluginFailed:
        observer.plugin_failed(kind, name, error)
        # The plugin's own text goes to the log only: who reads this is a client.
        return PluginFailed(f"the {kind} {name!r} of profile {self.name!r} failed ({type(error).__name__})")


def _fault(returned: Sequence[Endpoint]) -> str:
    """Of a plugin that did not return a subset of what it was given."""
    return "returned an endpoint twice" if len(set(returned)) != len(returned) else "returned what was no candidate"


def _refuse(name: str, observer: Observer) -> float:
    observer.score_refused(name)
    return 0.0
