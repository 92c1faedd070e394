"""Settings of the log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class LogSettings:
    """``format``: ``json`` for machines or ``text`` for people. ``requests``: write a line for each request."""

    format: Literal["json", "text"] = "text"
    level: Literal["debug", "info", "warning", "error"] = "info"
    requests: bool = True
