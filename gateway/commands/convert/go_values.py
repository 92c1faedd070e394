"""Values as Go and Kubernetes write them, in llm-d's file and on its command line."""

from __future__ import annotations

import math
import re

_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(?:\d+(?:\.\d*)?(?:ns|us|µs|ms|s|m|h))+")
_PART = re.compile(r"(\d+(?:\.\d*)?)(ns|us|µs|ms|s|m|h)")
_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)(Ki|Mi|Gi|Ti|Pi|k|M|G|T|P)?")
_FACTORS = {
    **{f"{prefix}i": 1024**power for power, prefix in enumerate("KMGTP", 1)},
    **{prefix: 1000**power for power, prefix in enumerate("kMGTP", 1)},
}


def duration(text: str) -> float:
    """Go's form, such as ``1m30s``, in seconds. Raises ValueError."""
    if text != "0" and not _DURATION.fullmatch(text):
        raise ValueError("expected a duration, such as 60s or 1m30s")
    return math.fsum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))


def quantity(text: str) -> int:
    """Kubernetes' form, such as ``512Mi`` or ``1000``. Raises ValueError."""
    found = _QUANTITY.fullmatch(text)
    if found is None:
        raise ValueError("expected a quantity, such as 512Mi or 1000")
    return int(float(found[1]) * _FACTORS.get(found[2], 1))
