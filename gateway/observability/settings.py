"""Logs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class LogSettings:
    """``format``: ``json`` or ``text``. ``requests``: one line for each request."""

    format: Literal["json", "text"] = "text"
    level: Literal["debug", "info", "warning", "error"] = "info"
    requests: bool = True
