"""What an answered request shows beside its times: what the engine counted, against what was expected of it.

Only what was answered well teaches; a prefill leg of its own shows of its engine what an answer would.
"""

from __future__ import annotations

from gateway.api.usage import Usage
from gateway.core.observer import Hit
from gateway.placement.leg_work import LegWork
from gateway.placement.placing import Answered, Placement, learn
from gateway.proxy.serving.call import Call
from gateway.proxy.serving.decisions import DecisionRecord
from gateway.proxy.serving.timeline import Timeline
from gateway.tokens.agreement import FORMS


def learn_from(call: Call, timeline: Timeline, placement: Placement, record: DecisionRecord) -> None:
    """From an answer that has ended well: the engine's pace, how long answers are, and what the engine counted."""
    usage = timeline.usage
    seen = Answered(
        at=timeline.clock.monotonic(),
        sequences=call.sequences,
        events=timeline.outputs,
        first_at=timeline.first_output_at,
        later=0 if timeline.first_output_at is None else timeline.outputs_since_first,
        tokens=None if usage is None else usage.output_tokens,
    )
    learn(placement, seen)
    if usage is not None and usage.prompt_tokens is not None and call.prompt.whole and not timeline.by_ids:
        timeline.counted = call.prompt.count
    if not placement.split:  # what it reports is the prefill engine's figure, which had it from there
        compare(call, timeline, record, placement.decode, usage)


def compare(call: Call, timeline: Timeline, record: DecisionRecord, work: LegWork, usage: Usage | None) -> None:
    """What the engine of a leg has counted, beside what was expected of it."""
    if usage is None:
        return
    expected = work.expected_hit
    request, endpoint, exact = call.request, work.endpoint, call.exact_on(work.endpoint)
    # The engine's counts of a prompt that we have tokenized: where they can differ from ours only because its ids do.
    if not (call.own_tokens is None or timeline.by_ids or request.indivisible or request.adapter is not None):
        parity = call.runtime.tokens.parity
        if usage.prompt_tokens is not None:
            parity.compare_counts(endpoint.name, FORMS[request.kind], call.own_tokens, usage.prompt_tokens)
        if usage.cached_tokens is not None and exact:
            parity.compare_hits(endpoint.name, expected, usage.cached_tokens)
    if usage.cached_tokens is not None:
        record.cached_tokens = usage.cached_tokens
        if call.prompt.single:
            work.blocks.reported(expected, usage.cached_tokens)
            comparable = call.prompt.whole and exact
            hit = Hit(endpoint.name, usage.prompt_tokens, usage.cached_tokens, expected if comparable else None)
            timeline.hits += (hit,)
