"""The origin of each value of a configuration, so that every error can name file, line and key.

A key path is a tuple such as ``("models", 0, "endpoints", 1, "url")``, shown as ``models[0].endpoints[1].url``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TypeAlias

from gateway.errors import ConfigError

KeyPath: TypeAlias = tuple[str | int, ...]

SCRUBBED_FROM = 4
"""Characters: a value from the environment that is shorter is no secret, and may be a part of any word."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A value that holds something from the environment: as written (``text``), and with it filled in."""

    text: str
    value: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Origin:
    """The file of a configuration; the line (from 1) and the environment reference of each key path.

    The default is that of a configuration built in code: no file, no lines.
    """

    file: str = ""
    lines: Mapping[KeyPath, int] = field(default_factory=dict, repr=False)
    references: Mapping[KeyPath, Reference] = field(default_factory=dict, repr=False)

    @property
    def given(self) -> frozenset[str]:
        """The top-level keys that the file has."""
        return frozenset(str(path[0]) for path in self.lines if len(path) == 1)

    def error(self, path: KeyPath, problem: str, *, at: KeyPath | None = None) -> ConfigError:
        """A ConfigError ``FILE:LINE: KEY: problem``; ``at``: the key whose line is meant, where it is not ``path``."""
        where = path if at is None else at
        while where and where not in self.lines:
            where = where[:-1]
        line = self.lines.get(where)
        place = self.file if line is None else f"{self.file}:{line}"
        return ConfigError(": ".join(part for part in (place, show(path), problem) if part), param=show(path) or None)

    def scrub(self, text: str) -> str:
        """``text`` from elsewhere, with every value that came from the environment replaced by its reference."""
        for reference in self.references.values():
            if len(reference.value) >= SCRUBBED_FROM:
                text = text.replace(reference.value, reference.text)
                text = text.replace(repr(reference.value)[1:-1], reference.text)
        return text


def show(path: KeyPath) -> str:
    shown = ""
    for part in path:
        if isinstance(part, int):
            shown += f"[{part}]"
        else:
            shown += f".{part}" if shown else part
    return shown


def nearest(word: str, allowed: Iterable[str]) -> str:
    """``; did you mean 'x'? Allowed: ...``: the end of every error about a word that is not one of a set."""
    options = sorted(allowed)
    if not options:
        return "; there are none"
    close = get_close_matches(word, options, n=1)
    meant = f"; did you mean {close[0]!r}?" if close else "."
    return f"{meant} Allowed: {', '.join(options)}"
