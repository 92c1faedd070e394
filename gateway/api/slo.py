"""Latency objectives of a request: its ``x-slo-ttft-ms`` and ``x-slo-tpot-ms`` headers, else its model's.

llm-d's newer names of the two, ``x-llm-d-slo-...``, are read with them: see ``ALSO`` in ``headers.py``."""

from __future__ import annotations

import re
from collections.abc import Mapping

from gateway.api.settings import SloSettings
from gateway.errors import ClientError
from gateway.framework.request import Slo

TTFT = "x-slo-ttft-ms"
TPOT = "x-slo-tpot-ms"
OBJECTIVES = frozenset({TTFT, TPOT})

LONGEST = 86_400_000.0
"""Milliseconds: a day. A larger number is a wrong unit, not an objective."""

_NUMBER = re.compile(r"[0-9]{1,20}(?:\.[0-9]{1,20})?")


def read_slo(headers: Mapping[str, str], settings: SloSettings) -> Slo | None:
    """``headers``: lower-case names. None: neither they nor the model set an objective.

    Raises ClientError, whose ``param`` is the header, for what is not a number of milliseconds above 0.
    """
    ttft = _milliseconds(headers[TTFT], TTFT) if TTFT in headers else settings.ttft_ms
    tpot = _milliseconds(headers[TPOT], TPOT) if TPOT in headers else settings.tpot_ms
    if ttft is None and tpot is None:
        return None
    return Slo(ttft=None if ttft is None else ttft / 1000, tpot=None if tpot is None else tpot / 1000)


def _milliseconds(text: str, name: str) -> float:
    text = text.strip()
    # Not float() alone: it accepts "nan", "1_0" and digits of other scripts.
    value = float(text) if _NUMBER.fullmatch(text) else 0.0
    if not 0 < value <= LONGEST:
        raise ClientError(
            f"The header {name} must be a number of milliseconds above 0 and up to a day, such as 500.", param=name
        )
    return value
