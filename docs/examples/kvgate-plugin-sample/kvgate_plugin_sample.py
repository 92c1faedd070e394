"""The scorer ``time-of-day``: prefers endpoints with a label at certain hours, such as engines on a night tariff.

What it does
    Within the hours: 1 for endpoints that have the label, 0 for the others. Outside of them: 1 for all.

Scheduling intent
    A preference, to be blended with scorers of cache and load.

Inputs
    ``labels``, and the time of day in UTC.

Parameters
    ``label`` (required): ``{name: value}`` pairs, all of which an endpoint must have.
    ``begin``, ``end`` (default 22 and 6): hours, UTC; the time between may pass midnight.

Example
    ``plugins: [{name: night, type: time-of-day, parameters: {label: {tariff: night}}}]``
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gateway.framework import Context, Endpoint, Request


class TimeOfDay:
    """Some endpoints at some hours."""

    @dataclass(frozen=True)
    class Parameters:
        label: Mapping[str, str]
        begin: int = 22
        end: int = 6

        def __post_init__(self) -> None:
            for name in ("begin", "end"):
                if not 0 <= getattr(self, name) <= 23:
                    raise ValueError(f"{name} must be an hour in 0..23")

    def __init__(self, parameters: Parameters, context: Context) -> None:
        self._label = parameters.label.items()
        self._begin, self._end = parameters.begin, parameters.end
        self._clock = context.clock

    def score(self, request: Request, endpoints: Sequence[Endpoint], /) -> Sequence[float]:
        hour = self._clock.wall() // 3600 % 24
        # Both measured from the beginning, so that midnight is nothing special.
        if (hour - self._begin) % 24 >= (self._end - self._begin) % 24:
            return [1.0] * len(endpoints)
        return [float(self._label <= endpoint.labels.items()) for endpoint in endpoints]
