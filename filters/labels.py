"""The filter ``labels``.

What it does
    Keeps endpoints whose labels have, for every label named, one of the values given.

Scheduling intent
    Pins a profile to a zone, a hardware type or a tenant's engines. With ``prefer`` it is a wish: where nothing
    matches, everything stays.

Inputs
    ``labels``, as configured on the endpoint.

Parameters
    ``match`` (required): label -> value, or list of values.
    ``prefer`` (default ``false``): keep all endpoints where none matches.

Example
    ``plugins: [{name: near, type: labels, parameters: {match: {zone: a}, prefer: true}}]``
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gateway.framework import Context, Endpoint, Request


class Labels:
    """Endpoints with certain labels."""

    @dataclass(frozen=True, slots=True)
    class Parameters:
        match: Mapping[str, str | tuple[str, ...]]
        prefer: bool = False

        def __post_init__(self) -> None:
            if not self.match:
                raise ValueError("match must name at least one label")
            for label, values in self.match.items():
                if not values:
                    raise ValueError(f"match: {label!r} needs at least one value")

    def __init__(self, parameters: Parameters, context: Context) -> None:
        self._wanted = tuple(
            (label, frozenset([values] if isinstance(values, str) else values))
            for label, values in parameters.match.items()
        )
        self._prefer = parameters.prefer

    def filter(self, request: Request, endpoints: Sequence[Endpoint], /) -> Sequence[Endpoint]:
        matching = [endpoint for endpoint in endpoints if self._matches(endpoint.labels)]
        return matching if matching or not self._prefer else endpoints

    def _matches(self, labels: Mapping[str, str]) -> bool:
        return all(labels.get(label) in values for label, values in self._wanted)
