"""Endpoints in files that something writes: a scheduler, a cron job, Prometheus' file_sd.

Rules: the files are looked at each second, and read when they have changed. A file that cannot be used, half written
for example, keeps what was in it before; it is reported with its line when the next look finds it unchanged. A file
that has gone takes its endpoints with it where others still match the pattern; if none is left, all stays, since a
folder that is not mounted looks like that: an empty list in a file is how to say that there are no endpoints.
"""

from __future__ import annotations

import asyncio
import glob
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gateway.config.document import text_of
from gateway.core.files import state_of
from gateway.discovery.entries import Listed, of_yaml, with_lines
from gateway.discovery.settings import DiscoverSettings
from gateway.discovery.source import Found, Lost
from gateway.errors import ConfigError

LOOK = 1.0
"""Seconds between two looks: a ``stat`` of each file, in a thread."""


@dataclass(slots=True)
class _File:
    """``state``: when it was read last. ``listed``: its last usable content; None: it had none yet. ``problem``: why it
    cannot be used; empty: it can. ``again``: a look has found it as it was, or as broken
    as before."""

    state: object = None
    listed: Listed | None = None
    problem: str = ""
    again: bool = False


class FileSource:
    """``environ``: for ``${NAME}`` in YAML files."""

    def __init__(self, settings: DiscoverSettings, environ: Mapping[str, str]) -> None:
        assert settings.file is not None
        self._settings = settings
        self._pattern = settings.file
        self._environ = environ
        self._files: dict[str, _File] = {}
        self._missing = False

    async def follow(self, found: Found, lost: Lost) -> None:
        while True:
            changed = await asyncio.to_thread(self._look)
            lists = [file.listed for file in self._files.values() if file.listed is not None]
            problem = "; ".join(self._problems())
            if changed and lists:
                found(
                    [endpoint for listed in lists for endpoint in listed.endpoints],
                    [line for listed in lists for line in listed.wrong],
                    problem,
                )
            elif problem:
                lost(problem)
            await asyncio.sleep(LOOK)

    def _problems(self) -> Sequence[str]:
        if self._missing:
            return [f"no file matches {self._pattern}"]
        return [file.problem for file in self._files.values() if file.problem and file.again]

    def _look(self) -> bool:
        """Read what has changed; returns whether anything has that counts. Blocking."""
        paths = self._paths()
        changed, self._missing = self._missing, not paths
        if self._missing:
            return False
        for path in self._files.keys() - paths:
            del self._files[path]
            changed = True
        for path in paths:
            file = self._files.setdefault(path, _File())
            state = state_of(path)
            if state == file.state:
                file.again = True
                continue
            file.state, broken = state, bool(file.problem)
            usable = self._read(path, file)
            file.again = file.again and broken and not usable
            changed |= usable
        return changed

    def _paths(self) -> list[str]:
        if not glob.has_magic(self._pattern) or os.path.exists(self._pattern):
            return [self._pattern]
        return sorted(path for path in glob.glob(self._pattern, recursive=True) if not os.path.isdir(path))

    def _read(self, path: str, file: _File) -> bool:
        """Whether it can be used."""
        try:
            text = text_of(Path(path))
            if path.endswith(".json"):
                file.listed = with_lines(text, path, self._settings)
            else:
                file.listed = of_yaml(text, path, self._settings, self._environ)
        except ConfigError as error:
            file.problem = error.message
            return False
        file.problem = ""
        return True
