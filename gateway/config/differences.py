"""The differences between two configurations, as key paths, without values: for the log of a reload."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from gateway.config.decode import keys


def differences(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """Of two settings of one type: ``limits.max_queue``, ``models[sim].endpoints[http://a:8000] added``.

    Items of a list are identified by their name or URL. A list of other items counts as one value.
    """
    for field in keys(type(before)):
        one, other = getattr(before, field.name), getattr(after, field.name)
        where = f"{path}.{field.name}" if path else field.name
        if one == other:
            continue
        if dataclasses.is_dataclass(one) and type(one) is type(other):
            yield from differences(one, other, where)
        elif _is_named(one) and _is_named(other):
            yield from _of_lists(one, other, where)
        else:
            yield where


def _of_lists(before: tuple[Any, ...], after: tuple[Any, ...], path: str) -> Iterator[str]:
    ones, others = {_identity(item): item for item in before}, {_identity(item): item for item in after}
    yield from (f"{path}[{name}] removed" for name in ones if name not in others)
    for name, item in others.items():
        if name not in ones:
            yield f"{path}[{name}] added"
        elif ones[name] != item:
            yield from differences(ones[name], item, f"{path}[{name}]")
    if [name for name in ones if name in others] != [name for name in others if name in ones]:
        yield f"{path} in another order"


def _is_named(value: Any) -> bool:
    return isinstance(value, tuple) and bool(value) and all(_identity(item) for item in value)


def _identity(item: Any) -> str:
    name: str = getattr(item, "url", "") or getattr(item, "name", "")
    return name if dataclasses.is_dataclass(item) else ""
