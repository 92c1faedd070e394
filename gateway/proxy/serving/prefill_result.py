"""The answer of a prefill leg, kept until a decode engine has used it."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.framework import Endpoint
from gateway.proxy.serving.connectors import Transfer


@dataclass(frozen=True, slots=True)
class PrefillResult:
    """``at``: when the prefill ended, or earlier, by ``core.pauses.age_clock``."""

    prefill: Endpoint
    transfer: Transfer
    answer: bytes
    at: float
