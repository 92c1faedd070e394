"""Checks clients' API keys: compared in constant time, never logged."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from pathlib import Path

from gateway.errors import ConfigError, Unauthorized
from gateway.proxy.settings import KeySettings

BEARER = "bearer "


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


class ClientKeys:
    """The keys of a ``KeySettings``; with none, everyone may, and none is ``wanted``. Raises ConfigError as ``read``
    does."""

    def __init__(self, settings: KeySettings) -> None:
        self._digests = [_digest(key) for key in read(settings)]
        self.wanted = bool(self._digests)

    def check(self, headers: Mapping[str, str]) -> None:
        """Raises Unauthorized unless a key is sent as ``Authorization: Bearer`` or, as Anthropic's clients do,
        ``x-api-key``. All keys are compared, so that the time reveals nothing."""
        if not self._digests:
            return
        authorization = headers.get("Authorization", "")
        if authorization[: len(BEARER)].lower() == BEARER:
            given = authorization[len(BEARER) :].strip()
        else:
            given = headers.get("x-api-key", "").strip()
        digest = _digest(given)
        found = False
        for known in self._digests:
            found |= hmac.compare_digest(known, digest)
        if not found:
            raise Unauthorized("A valid API key is needed: send it as 'Authorization: Bearer KEY'.")


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
