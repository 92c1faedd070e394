"""What the doctor finds: one check of one engine, how bad it is, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from enum import IntEnum
from typing import Any

CHECKS = ("reachable", "model", "block size", "events", "replay", "last event", "tokens", "hashes", "usage", "transfer")
"""In the order of the table's columns."""


class Level(IntEnum):
    """``NOTE``: nothing to do. ``WARNING``: it works, and could know more. ``FAILED``: what is known is wrong, or is
    not known."""

    OK = 0
    NOTE = 1
    WARNING = 2
    FAILED = 3


@dataclass(frozen=True, slots=True)
class Finding:
    """``short``: for a table's cell. ``said``: what is wrong; ``remedy``: what to do. Both are empty where all is well.
    ``rank``: the data-parallel rank that it is of, where there are several."""

    check: str
    level: Level
    short: str
    said: str = ""
    remedy: str = ""
    rank: int | None = None


@dataclass(slots=True)
class Report:
    """One endpoint of one model. Several ranks may have a finding each for a check."""

    model: str
    endpoint: str
    url: str
    findings: list[Finding] = field(default_factory=list)

    @property
    def level(self) -> Level:
        return max((finding.level for finding in self.findings), default=Level.OK)

    def of(self, check: str) -> Finding | None:
        """The worst finding of a check; None: it was not made."""
        return max((one for one in self.findings if one.check == check), key=lambda one: one.level, default=None)

    def as_json(self) -> dict[str, Any]:
        findings = [asdict(finding) | {"level": finding.level.name.lower()} for finding in self.findings]
        return {"endpoint": self.endpoint, "url": self.url, "level": self.level.name.lower(), "findings": findings}


def healthy(reports: Sequence[Report]) -> bool:
    """No check has failed."""
    return all(report.level < Level.FAILED for report in reports)
