"""Masks secrets: the last step before a line is rendered, for our own lines and those of other libraries.

A key may come in a field, in a message, or in an exception's text. So three things are masked: fields by their name,
text that has the form of a key, and the configured keys themselves.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from structlog.typing import EventDict

MASK = "***"

# What an operator calls a key, which is no part of it.
_PUBLIC_NAMES = ("key_id",)

_SECRET_NAMES = ("key", "authorization", "password", "secret", "cookie")

# Most lines contain none of these: searching them first costs a tenth of the expression below.
_HINTS = ("bearer", "key", "authorization", "://", "sk-", "hf_", "kvg-")

_SECRET_TEXT = re.compile(
    r"""
      (?P<scheme> \b bearer \s+ ) (?! \*\*\* ) [^\s"',;]+                    # Authorization's own form
    | (?P<name> \b (?:x-)? (?:api[-_]?key | authorization)                  # a header or a parameter, written out
        (?: ["']? \s* [:=] \s* (?: b?["'] )? | ["'] \s* , \s* b?["'] ) )
      (?: (?:bearer|basic) \s+ )? [^\s"',;]+
    | (?P<user> :// [^/@\s:]* : ) [^/@\s]+ (?= @ )                          # http://user:password@host
    | \b (?P<vendor> sk- | hf_ | kvg- ) [A-Za-z0-9_-]{8,}                   # OpenAI's, the hub's and our own keys
    """,
    re.IGNORECASE | re.VERBOSE,
)

_PLAIN = frozenset({str, int, float, bool, type(None)})

# Shorter configured keys are not masked: "test" is in half of all lines, and is no secret.
_MIN_SECRET = 6


class Redaction:
    """A structlog processor. ``secrets``: the configured keys, masked wherever they stand."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets: set[str] = set()
        self._known: re.Pattern[str] | None = None
        self.learn(secrets)

    def learn(self, secrets: Iterable[str]) -> None:
        """Mask these too. Former keys stay masked: an old key must not be readable either."""
        self._secrets.update(secret for secret in secrets if len(secret) >= _MIN_SECRET)
        known = sorted(self._secrets, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, known))) if known else None

    def __call__(self, logger: object, method: str, event: EventDict) -> EventDict:
        # A usual line is checked once as a whole: field by field this would be most of a line's cost.
        if set(map(type, event.values())) <= _PLAIN and not _holds_secret(tuple(event)):
            whole = "\n".join([value for value in event.values() if type(value) is str])
            if self.text(whole) == whole:
                return event
        return {name: self.field(name, value) for name, value in event.items()}

    def field(self, name: str, value: Any) -> Any:
        """The value as it may be shown under this name. Objects become their text."""
        if value is None or isinstance(value, (bool, int, float)):
            return value
        if _holds_secret((name,)):
            return MASK
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {str(inner): self.field(str(inner), item) for inner, item in value.items()}
        if isinstance(value, (list, tuple, set, frozenset)):
            return [self.field("", item) for item in value]
        return self.text(value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value))

    def text(self, text: str) -> str:
        if self._known is not None:
            text = self._known.sub(MASK, text)
        folded = text.lower()
        for hint in _HINTS:
            if hint in folded:
                return _SECRET_TEXT.sub(_mask, text)
        return text


@lru_cache(maxsize=1024)  # far more than the code has kinds of lines
def _holds_secret(names: tuple[str, ...]) -> bool:
    return any(part in name.lower() for name in names if name not in _PUBLIC_NAMES for part in _SECRET_NAMES)


def _mask(found: re.Match[str]) -> str:
    return "".join(part for part in found.groups() if part) + MASK
