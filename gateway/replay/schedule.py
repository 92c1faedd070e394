"""Engines that fail, leave and join while a workload is replayed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from gateway.config.origin import nearest
from gateway.errors import ConfigError

LATEST = 1e9
"""Seconds: beyond any trace."""


class What(StrEnum):
    """What becomes of an engine.

    ``FAIL``: its process dies, with all that it computes and holds. ``LEAVE``: it is drained: it ends what it has, and
    gets nothing new. ``JOIN``: it comes up with an empty cache; one that joins first is not there until then.
    """

    FAIL = "fail"
    LEAVE = "leave"
    JOIN = "join"


@dataclass(frozen=True, slots=True)
class Change:
    """``at``: seconds of virtual time. ``endpoint``: its number, from 0, in the order of the fleet."""

    at: float
    endpoint: int
    what: What

    def __str__(self) -> str:
        return f"{self.at:g}:{self.what}:{self.endpoint}"


Schedule: TypeAlias = tuple[Change, ...]


def schedule(texts: Sequence[str]) -> Schedule:
    """Of ``AT:WHAT:ENDPOINT`` each, such as ``300:fail:2``; ordered by time. Raises ConfigError."""
    return tuple(sorted(map(_change, texts), key=lambda change: change.at))


def check(changes: Schedule, endpoints: int) -> None:
    """Raises ConfigError for an endpoint that there is not, or a change that makes no sense after the one before."""
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
