"""Whether a request that has ended met its objectives."""

from __future__ import annotations

from typing import Literal

from gateway.framework import GENERATES, Kind
from gateway.framework.request import Slo
from gateway.proxy.serving.timeline import NOT_TOLD

Verdict = Literal["met", "missed"]


def judge(
    slo: Slo | None,
    *,
    kind: Kind,
    stream: bool,
    status: int,
    outcome: str,
    duration: float,
    ttft: float | None,
    output_tokens: int | None,
) -> Verdict | None:
    """None: it had none, or it cannot be told. Seconds from the request's arrival.

    - Streamed: the first token came within ``slo.ttft``, the others ``slo.tpot`` apart on average.
    - Unstreamed: the whole answer came within what both together allow its tokens; with one of them only, that cannot
      be told. What generates nothing has ``slo.ttft`` for its answer.
    - What failed has missed them. But a client's own error is nobody's miss, nor a client that left, unless its first
      token was late by then.
    """
    if slo is None or outcome in NOT_TOLD:
        return None
    if outcome == "cancelled":
        late = slo.ttft is not None and stream and (duration if ttft is None else ttft) > slo.ttft
        return "missed" if late else None
    if outcome != "ok":
        return None if 400 <= status < 500 and status != 429 else "missed"
    if kind not in GENERATES:
        return None if slo.ttft is None else _verdict(duration <= slo.ttft)
    following = max(0, (output_tokens or 0) - 1)
    if stream:
        if ttft is None:
            return None
        in_time = slo.ttft is None or ttft <= slo.ttft
        return _verdict(in_time and (slo.tpot is None or duration - ttft <= slo.tpot * following or not following))
    if slo.ttft is None or slo.tpot is None or output_tokens is None:
        return None
    return _verdict(duration <= slo.ttft + slo.tpot * following)


def _verdict(met: bool) -> Verdict:
    return "met" if met else "missed"
