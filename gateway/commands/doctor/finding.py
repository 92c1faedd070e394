"""An engine that the doctor examines, and its findings: the check, how bad it is, and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from enum import IntEnum
from typing import Any

from gateway.config.settings import ModelSettings
from gateway.fleet.settings import EndpointSettings
from gateway.kvcache.events.listener import EventListener
from gateway.tokens.tokenizer import ModelTokens

CHECKS = ("reachable", "model", "block size", "events", "replay", "last event", "tokens", "hashes", "usage", "transfer")
"""The checks, in the order of the table's columns."""


class Level(IntEnum):
    """``NOTE``: nothing to do. ``WARNING``: it works, but less is known than could be. ``FAILED``: the gateway would
    have wrong knowledge, or none."""

    OK = 0
    NOTE = 1
    WARNING = 2
    FAILED = 3


@dataclass(frozen=True, slots=True)
class Target:
    """An endpoint with its configuration. ``unit``: the configured block size, None if it is the default. ``seeds``:
    values of PYTHONHASHSEED that its hashes may use. ``listener``: what engines connect to; None: nothing, or another
    process's."""

    model: ModelSettings
    endpoint: EndpointSettings
    tokens: ModelTokens
    unit: int | None
    seeds: Sequence[str]
    listener: EventListener | None


@dataclass(frozen=True, slots=True)
class Finding:
    """``short``: the text of a table's cell. ``said``: what is wrong. ``remedy``: what to do; both are empty if all is
    well. ``rank``: the data-parallel rank, if there are several."""

    check: str
    level: Level
    short: str
    said: str = ""
    remedy: str = ""
    rank: int | None = None


@dataclass(slots=True)
class Report:
    """The findings about one endpoint of one model. Several ranks may have a finding each for the same check."""

    model: str
    endpoint: str
    url: str
    findings: list[Finding] = field(default_factory=list)

    @property
    def level(self) -> Level:
        return max((finding.level for finding in self.findings), default=Level.OK)

    def of(self, check: str) -> Finding | None:
        """The worst finding of a check; None: the check was not made."""
        return max((one for one in self.findings if one.check == check), key=lambda one: one.level, default=None)

    def as_json(self) -> dict[str, Any]:
        findings = [asdict(finding) | {"level": finding.level.name.lower()} for finding in self.findings]
        return {"endpoint": self.endpoint, "url": self.url, "level": self.level.name.lower(), "findings": findings}


def healthy(reports: Sequence[Report]) -> bool:
    """Whether no check has failed."""
    return all(report.level < Level.FAILED for report in reports)
