"""Covers: gateway/proxy/serving/connectors/contract.py, gateway/scheduling/prefill_decode.py.

What the connectors say of their engines is what plans are made with.
"""

from __future__ import annotations

from random import Random

from gateway.proxy.serving.connectors import connectors
from gateway.scheduling.prefill_decode import NEVER_WHOLE


async def _fetch(url: str) -> bytes:
    raise AssertionError(url)


def test_what_cannot_be_computed_on_the_decode_engine_is_never_planned_whole() -> None:
    """Else a request would be planned for an engine that hangs on it, or a failed hand-over sent to one."""
    found = connectors(_fetch, lambda: 0.0, Random(1))
    assert {name for name, one in found.items() if not one.decode_can_compute} == NEVER_WHOLE
