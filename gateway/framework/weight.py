"""What a second between tokens weighs against a second before the first one.

    weight = 4 * ttft objective / (expected output * tpot objective), in 0.1..2

A second before the first token uses up 1 / (ttft objective) of what may pass, and one between tokens
1 / (expected output * tpot objective). The 4 is from replay: most first tokens come long before their objective, and
most answers that miss one miss the other. For 2 s, 50 ms and 320 tokens it comes to 0.5, which is the weight where a
request has no objectives. A smaller weight has shorter p99 times to a first token under overload and less goodput; a
larger one the other way, until conversations spread that should stay.
"""

from __future__ import annotations

from gateway.framework.request import GENERATES, Request

USUAL_DECODING_WEIGHT = 0.5
"""Where a request has not both objectives, or no tokens between which time could pass."""

URGENCY = 4.0
"""Of seconds between tokens, beside what the objectives say alone."""

LEAST, MOST = 0.1, 2.0
"""Whatever the objectives say. Below, answers that run would count for nothing; above, first tokens."""


def decoding_weight(request: Request) -> float:
    slo = request.slo
    if slo is None or slo.ttft is None or slo.tpot is None or request.kind not in GENERATES:
        return USUAL_DECODING_WEIGHT
    return min(max(URGENCY * slo.ttft / (max(1.0, request.expected_output) * slo.tpot), LEAST), MOST)
