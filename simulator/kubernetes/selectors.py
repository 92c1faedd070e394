"""Label selectors in Kubernetes' syntax: ``app=vllm,tier!=test,role in (prefill, decode),zone,!old``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TypeAlias

Matches: TypeAlias = Callable[[Mapping[str, str]], bool]

_TERM = re.compile(
    r"\s*(?P<absent>!)?\s*(?P<key>[\w./-]+)\s*"
    r"(?:(?P<same>==?|!=)\s*(?P<value>[\w.-]*)|(?P<set>in|notin)\s*\((?P<values>[^()]*)\))?\s*(?:,|$)"
)


def parse(selector: str) -> Matches:
    """Raises ValueError."""
    terms: list[Matches] = []
    at = 0
    while at < len(selector):
        found = _TERM.match(selector, at)
        if found is None:
            raise ValueError(f"unable to parse requirement: {selector[at:]!r}")
        terms.append(_term(found))
        at = found.end()
    return lambda labels: all(term(labels) for term in terms)


def _term(found: re.Match[str]) -> Matches:
    key = found["key"]
    if found["same"] is not None:
        value, negated = found["value"], found["same"] == "!="
        return lambda labels: (labels.get(key) == value) != negated
    if found["set"] is not None:
        values, negated = {one.strip() for one in found["values"].split(",")}, found["set"] == "notin"
        return lambda labels: (labels.get(key) in values) != negated
    absent = found["absent"] is not None
    return lambda labels: (key in labels) != absent
