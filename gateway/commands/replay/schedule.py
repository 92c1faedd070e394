"""A schedule of engines that fail, leave and join during a replay."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from gateway.config.origin import nearest
from gateway.errors import ConfigError

LATEST = 1e9
"""Seconds: longer than any trace."""


class What(StrEnum):
    """A change of an engine.

    ``FAIL``: its process dies, and all that it computes and holds is lost. ``LEAVE``: it is drained: it finishes its
    requests and gets no new ones. ``JOIN``: it starts with an empty cache; an engine whose first change is to join is
    absent until then.
    """

    FAIL = "fail"
    LEAVE = "leave"
    JOIN = "join"


@dataclass(frozen=True, slots=True)
class Change:
    """A change at a time. ``at``: seconds of virtual time. ``endpoint``: its number in the fleet, from 0."""

    at: float
    endpoint: int
    what: What

    def __str__(self) -> str:
        return f"{self.at:g}:{self.what}:{self.endpoint}"


Schedule: TypeAlias = tuple[Change, ...]


def schedule(texts: Sequence[str]) -> Schedule:
    """Read changes ``AT:WHAT:ENDPOINT``, such as ``300:fail:2``; returns them ordered by time. Raises ConfigError."""
    return tuple(sorted(map(_change, texts), key=lambda change: change.at))


def check(changes: Schedule, endpoints: int) -> None:
    """Check a schedule. Raises ConfigError for an endpoint that does not exist, or a change that contradicts the one
    before."""
    there: dict[int, bool] = {}
    for change in changes:
        if not 0 <= change.endpoint < endpoints:
            raise ConfigError(f"--change {change}: the endpoints are 0..{endpoints - 1}")
        if not 0 <= change.at <= LATEST:
            raise ConfigError(f"--change {change}: the time must be in 0..{LATEST:g} seconds")
        joins = change.what is What.JOIN
        if there.get(change.endpoint, not joins) == joins:
            state = "there already" if joins else "not there then"
            raise ConfigError(f"--change {change}: endpoint {change.endpoint} is {state}")
        there[change.endpoint] = joins


def _change(text: str) -> Change:
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?):([a-z]+):(\d{1,5})", text.strip(), re.ASCII)
    if found is None:
        raise ConfigError(f"--change: {text!r} must be AT:WHAT:ENDPOINT, such as 300:fail:2")
    words = [str(each) for each in What]
    if found[2] not in words:
        raise ConfigError(f"--change: there is no {found[2]!r}{nearest(found[2], words)}; one of {', '.join(words)}")
    return Change(float(found[1]), int(found[3]), What(found[2]))
