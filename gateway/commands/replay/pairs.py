"""Options of several values: ``NAME=VALUE,...``."""

from __future__ import annotations

import re
from collections.abc import Collection

from gateway.config.origin import nearest
from gateway.errors import ConfigError


def pairs(option: str, text: str, names: Collection[str]) -> dict[str, str]:
    """Read the values by name. ``names``: the valid names. Raises ConfigError, which names ``option``."""
    found: dict[str, str] = {}
    for part in text.split(","):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not equals or not value:
            raise ConfigError(f"{option}: {part.strip()!r} must be NAME=VALUE")
        if name not in names:
            raise ConfigError(f"{option}: there is no {name!r}{nearest(name, names)}")
        if name in found:
            raise ConfigError(f"{option}: {name} is given twice")
        found[name] = value
    return found


def number(option: str, text: str) -> float:
    """Raises ConfigError, which names ``option``."""
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"{option}: {text!r} is no number") from None


UNITS = {"ms": 1e-3, "s": 1.0}


def duration(text: str) -> float | None:
    """Seconds of a time such as ``500ms`` or ``2s``; None: it is none."""
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?) ?(ms|s)", text, re.ASCII)
    return float(found[1]) * UNITS[found[2]] if found else None
