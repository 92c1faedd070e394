"""Settings of what replicas on several machines tell each other."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import unquote, urlsplit

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")

SCHEMES = ("redis://", "rediss://", "valkey://", "valkeys://", "unix://")

MOST_TICK = 0.1
"""Seconds. Loads that the others learn of later than this do more harm than good: all choose the same engine."""


@dataclass(frozen=True, slots=True)
class SharingSettings:
    """``url``: a Valkey or Redis server (6 or later), over which replicas tell each other their loads; ``redis://`` or
    ``valkey://``, ``rediss://`` or ``valkeys://`` (TLS) or ``unix://``, with user and password where it wants them;
    None: this gateway decides alone. ``name``: which replicas belong together: it is a part of every name on the
    server. ``tick``: seconds for which changes are gathered before they are told, 0.001 to 0.1.

    ``fallback``: what of a limit that all replicas share counts here while the server is away: ``share``: the part of
    one of as many replicas as were last known; ``open``: no limit; ``closed``: nothing more is let through.
    """

    url: str | None = field(default=None, repr=False)
    name: str = "default"
    fallback: Literal["share", "open", "closed"] = "share"
    tick: float = 0.005

    def __post_init__(self) -> None:
        if self.url is not None and not self.url.startswith(SCHEMES):
            raise ValueError(f"url must begin with one of {', '.join(SCHEMES)}")
        if not _NAME.fullmatch(self.name):
            raise ValueError("name must be 1 to 64 letters, digits or any of . _ -")
        if not 0.001 <= self.tick <= MOST_TICK:
            raise ValueError(f"tick must be 0.001 to {MOST_TICK} seconds")

    @property
    def password(self) -> str | None:
        """The password in the URL, which must not appear in a log."""
        password = None if self.url is None else urlsplit(self.url).password
        return None if password is None else unquote(password)
