"""The filter ``labels``.

What it does
    Keeps endpoints whose labels have, for every label named in ``match``, one of the values given, and that meet all of
    ``expressions``. These are Kubernetes' ``matchExpressions``: ``In`` and ``NotIn`` a list of values, ``Exists``,
    ``DoesNotExist``. An endpoint without the label is ``NotIn`` any list.

Scheduling intent
    Pins a profile to a zone, a hardware type or a tenant's engines. With ``prefer`` it is a wish: where nothing
    matches, everything stays.

Inputs
    ``labels``, as configured on the endpoint or found where it was discovered.

Parameters
    ``match`` (default ``{}``): label -> value, or list of values.
    ``expressions`` (default ``[]``): ``{key, operator, values}`` each. One of these two is required.
    ``unlabelled`` (default ``false``): an endpoint that lacks a label of ``match`` passes, too.
    ``prefer`` (default ``false``): keep all endpoints where none matches.

Example
    ``plugins: [{name: near, type: labels, parameters: {match: {zone: a}, prefer: true}}]``
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from gateway.framework import Context, Endpoint, Request


@dataclass(frozen=True, slots=True)
class Expression:
    """One of Kubernetes' label selector requirements."""

    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.operator in ("In", "NotIn") and not self.values:
            raise ValueError(f"values must name at least one for {self.operator}")
        if self.operator in ("Exists", "DoesNotExist") and self.values:
            raise ValueError(f"values must not be given for {self.operator}")


class Labels:
    """Endpoints with certain labels."""

    @dataclass(frozen=True, slots=True)
    class Parameters:
        match: Mapping[str, str | tuple[str, ...]] = field(default_factory=dict)
        expressions: tuple[Expression, ...] = ()
        unlabelled: bool = False
        prefer: bool = False

        def __post_init__(self) -> None:
            if not self.match and not self.expressions:
                raise ValueError("match or expressions must name at least one label")
            for label, values in self.match.items():
                if not values:
                    raise ValueError(f"match: {label!r} needs at least one value")

    def __init__(self, parameters: Parameters, context: Context) -> None:
        one_of = partial(_among, unlabelled=parameters.unlabelled)
        self._tests: tuple[tuple[str, Callable[[str | None], bool]], ...] = (
            *(
                (label, partial(one_of, frozenset([values] if isinstance(values, str) else values)))
                for label, values in parameters.match.items()
            ),
            *((each.key, _test(each)) for each in parameters.expressions),
        )
        self._prefer = parameters.prefer

    def filter(self, request: Request, endpoints: Sequence[Endpoint], /) -> Sequence[Endpoint]:
        matching = [endpoint for endpoint in endpoints if self._matches(endpoint.labels)]
        return matching if matching or not self._prefer else endpoints

    def _matches(self, labels: Mapping[str, str]) -> bool:
        return all(test(labels.get(label)) for label, test in self._tests)


def _among(values: frozenset[str], value: str | None, *, unlabelled: bool = False) -> bool:
    return unlabelled if value is None else value in values


def _test(expression: Expression) -> Callable[[str | None], bool]:
    """What it asks of a label's value; None: the endpoint lacks the label."""
    values = frozenset(expression.values)
    match expression.operator:
        case "In":
            return partial(_among, values)
        case "NotIn":
            return lambda value: value not in values
        case "Exists":
            return lambda value: value is not None
    return lambda value: value is None
