"""What two answers to the same request have in common, and two scrapes."""

from __future__ import annotations

import json
from typing import Any

OF_ONE_ANSWER = ("id", "created", "created_at", "completed_at", "system_fingerprint")


def shape(value: Any) -> Any:
    """What stays of a JSON value without its content: keys, types, a list's distinct shapes."""
    if isinstance(value, dict):
        return {key: shape(inner) for key, inner in value.items()}
    if isinstance(value, list):
        distinct: list[Any] = []
        for inner in map(shape, value):
            if inner not in distinct:
                distinct.append(inner)
        return distinct
    return type(value).__name__


def events(text: str) -> list[tuple[str, Any]]:
    """A stream's events: name (empty without one) and parsed data, ``[DONE]`` as it is; fails on any other form."""
    assert text.endswith("\n\n")
    found: list[tuple[str, Any]] = []
    for event in text.removesuffix("\n\n").split("\n\n"):
        name, _, data = event.rpartition("data: ")
        assert not name or (name.startswith("event: ") and name.endswith("\n")), event
        found.append((name, data if data == "[DONE]" else json.loads(data)))
    return found


def outline(text: str) -> list[tuple[str, Any]]:
    """A stream's events by name and shape, equal ones in a row as one: into how many deltas an engine cuts its text is
    a matter of time."""
    found: list[tuple[str, Any]] = []
    for name, data in events(text):
        one = (name, data if data == "[DONE]" else shape(data))
        if found[-1:] != [one]:
            found.append(one)
    return found


def without_identity(answer: Any) -> Any:
    """A JSON answer without what is its own: ids and times, and what its engine happened to hold."""
    if isinstance(answer, dict):
        return {
            key: without_identity(value)
            for key, value in answer.items()
            if key not in OF_ONE_ANSWER and not key.endswith(("cached_tokens", "cache_tokens"))
        }
    if isinstance(answer, list):
        return [without_identity(value) for value in answer]
    return answer


def series(text: str) -> dict[str, list[tuple[str, ...]]]:
    """Sample name -> the distinct sets of label names it has, each in the order of the text."""
    found: dict[str, list[tuple[str, ...]]] = {}
    for line in text.splitlines():
        if line.startswith("#") or not line:
            continue
        name, _, labels = line.rpartition(" ")[0].partition("{")
        names = tuple(part.partition("=")[0] for part in labels.removesuffix("}").split('",') if part)
        sets = found.setdefault(name, [])
        if names not in sets:
            sets.append(names)
    return found
