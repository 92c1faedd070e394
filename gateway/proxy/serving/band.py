"""The priority band of a request: its caller's, or what it asks for within its caller's bounds."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.errors import ClientError
from gateway.tenants.identity import Caller

PRIORITY = "x-kvgate-priority"
OBJECTIVE = "x-llm-d-inference-objective"
"""The name of an InferenceObjective, as clients of llm-d send it."""

MAX_PRIORITY = 1000
"""The most that a request may ask for in its header: far beyond any band, and few digits."""


def band_of(caller: Caller, headers: Mapping[str, str], priority: int) -> int:
    """``priority``: the body's, where a lower number is earlier, as in vLLM; 0: none.

    The first of these that is given counts: the header ``x-kvgate-priority``, so many bands above (or, negative, below)
    the caller's own; the name of an objective, with the band that is configured for it; the body's priority, so many
    bands below the caller's. Raises ClientError.
    """
    low, high = caller.bands
    if low == high:
        return caller.band
    if (given := headers.get(PRIORITY)) is not None:
        return caller.clamp(caller.band + _number(given))
    if caller.objectives and (given := headers.get(OBJECTIVE)) is not None:
        wanted = caller.objectives.get(given.strip())
        if wanted is not None:
            return caller.clamp(wanted)
    return caller.clamp(caller.band - priority)


def _number(given: str) -> int:
    text = given.strip()
    digits = text[1:] if text[:1] in ("-", "+") else text
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 4 and int(digits) <= MAX_PRIORITY):
        raise ClientError(
            f"{PRIORITY} must be a whole number in -{MAX_PRIORITY}..{MAX_PRIORITY}: higher is earlier.", param=PRIORITY
        )
    return int(text)
