"""A filter that keeps every endpoint, and from its first request on notes how late the event loop is. It stands alone:
``lag`` copies it to where the gateway that is measured finds it."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from gateway.framework import Context, Endpoint, Request

TICK = 0.002
"""Seconds between two looks."""

WRITTEN = 500
"""Looks after which they are written to the file: once a second."""


@dataclass(frozen=True)
class LagParameters:
    """``path``: a file, to which pairs of doubles are appended: when a tick was due (monotonic), how late it was."""

    path: str


class Lag:
    Parameters: ClassVar = LagParameters

    def __init__(self, parameters: LagParameters, context: Context) -> None:
        self._path = Path(parameters.path)
        self._seen: list[tuple[float, float]] = []
        self._due = 0.0

    def filter(self, request: Request, endpoints: Sequence[Endpoint], /) -> Sequence[Endpoint]:
        if not self._due:
            self._again(time.monotonic())
        return endpoints

    def _again(self, now: float) -> None:
        self._due = now + TICK
        asyncio.get_running_loop().call_at(self._due, self._look)

    def _look(self) -> None:
        now = time.monotonic()  # the clock of both loops; uvloop's own time has whole milliseconds
        due = self._due
        self._seen.append((due, max(0.0, now - due)))
        # Ticks that a standstill swallowed were late as well; else the longest would weigh least.
        while (due := due + TICK) <= now:
            self._seen.append((due, now - due))
        if len(self._seen) >= WRITTEN:
            with self._path.open("ab") as file:
                file.write(b"".join(struct.pack("dd", *each) for each in self._seen))
            self._seen.clear()
        self._again(now)
