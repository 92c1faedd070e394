"""How long a client waits for its answer to begin: its ``x-request-timeout`` header."""

from __future__ import annotations

import re
from collections.abc import Mapping

from gateway.errors import ClientError

REQUEST_TIMEOUT = "x-request-timeout"

LONGEST = 86_400.0
"""Seconds: a day. A larger number is a wrong unit, not a timeout."""

_NUMBER = re.compile(r"[0-9]{1,20}(?:\.[0-9]{1,20})?")


def read_timeout(headers: Mapping[str, str]) -> float:
    """Seconds from its arrival after which a client does not want its request placed any more.

    ``headers``: lower-case names, with this one among them. Raises ClientError for what is not a number of seconds
    above 0.
    """
    text = headers[REQUEST_TIMEOUT]
    # Not float() alone: it accepts "nan", "1_0" and digits of other scripts.
    value = float(text) if _NUMBER.fullmatch(text := text.strip()) else 0.0
    if not 0 < value <= LONGEST:
        raise ClientError(
            f"The header {REQUEST_TIMEOUT} must be a number of seconds above 0 and up to a day, such as 30.",
            param=REQUEST_TIMEOUT,
        )
    return value
