"""What vLLM takes beside what it asks for: pydantic's lax booleans, and the encodings of Python's ``json.loads``, by
which FastAPI reads a body. Held to both by tests/api/test_lax.py.
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
    """What an engine takes ``raw``, a value that was parsed once, for; None where that is no boolean."""
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


def as_utf8(raw: bytes) -> bytes:
    """A JSON text in UTF-8, without a byte order mark; ``raw`` itself where it is that.

    Raises:
        ClientError: it seems to be in UTF-16 or UTF-32, and is not.
    """
    if raw.startswith(UTF8_OBJECT):
        return raw
    encoding = json.detect_encoding(raw[:4])
    if encoding == "utf-8":
        return raw
    if encoding == "utf-8-sig":
        return raw[3:]
    try:
        return raw.decode(encoding).encode()
    except UnicodeError:
        raise ClientError(f"the body is not {encoding.upper()}, as which it begins; send UTF-8") from None
