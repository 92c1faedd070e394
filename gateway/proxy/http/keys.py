"""Reads the API keys that clients may send, as they are configured."""

from __future__ import annotations

from pathlib import Path

from gateway.errors import ConfigError
from gateway.proxy.settings import KeySettings


def read(settings: KeySettings) -> list[str]:
    """The configured keys, those in the file included. Raises ConfigError if the file cannot be read or is empty."""
    keys = list(settings.values)
    if settings.file is None:
        return keys
    try:
        lines = Path(settings.file).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{settings.file} cannot be read: {error}") from error
    keys += [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    if not keys:
        raise ConfigError(f"{settings.file} holds no key; to require none, remove the setting")
    return keys
