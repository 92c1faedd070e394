"""Values that vLLM accepts beside those of its schema: pydantic's lax booleans, and the encodings of Python's
``json.loads``, with which FastAPI reads a body. tests/api/test_lax.py compares this file with both.
"""

from __future__ import annotations

import json

import msgspec

from gateway.errors import ClientError

TRUE_WORDS = frozenset({"1", "true", "t", "yes", "y", "on"})
FALSE_WORDS = frozenset({"0", "false", "f", "no", "n", "off"})
LONGEST = 64
"""Bytes of a value that may be a boolean: the longest word with every letter escaped has 32."""
UTF8_OBJECT = (b'{"', b"{ ", b"{\n", b"{}")
"""How nearly every object in UTF-8 begins, and none in another encoding."""


def truth(raw: msgspec.Raw) -> bool | None:
    """The boolean that an engine reads from ``raw``, a valid JSON value; None: it would refuse the value."""
    if memoryview(raw).nbytes > LONGEST:
        return None
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    if isinstance(value, str):
        word = value.lower()
        return True if word in TRUE_WORDS else False if word in FALSE_WORDS else None
    return bool(value) if isinstance(value, int | float) and value in (0, 1) else None


def is_utf8(raw: bytes) -> bool:
    """Whether a JSON text begins as one in UTF-8 does, without a byte order mark."""
    return raw.startswith(UTF8_OBJECT) or json.detect_encoding(raw[:4]) == "utf-8"


def as_utf8(raw: bytes) -> bytes:
    """A JSON text in UTF-8, without a byte order mark; ``raw`` itself if it already is.

    Raises:
        ClientError: it seems to be in UTF-16 or UTF-32, and is not.
    """
    if is_utf8(raw):
        return raw
    encoding = json.detect_encoding(raw[:4])
    if encoding == "utf-8-sig":
        return raw[3:]
    try:
        return raw.decode(encoding).encode()
    except UnicodeError:
        raise ClientError(f"the body is not {encoding.upper()}, as which it begins; send UTF-8") from None
