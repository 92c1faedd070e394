"""What an answered request shows beside its times: what the engine counted, against what was expected of it.

Only what was answered well teaches; a prefill leg of its own shows of its engine what an answer would.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.api.usage import Usage
from gateway.fleet.load.booking import Booking
from gateway.placement.placing import Answered, LegWork
from gateway.tokens.agreement import FORMS

if TYPE_CHECKING:
    from gateway.proxy.serving.attempt import Attempt


def answered(attempt: Attempt) -> Answered:
    """What was seen of an answer that has ended well."""
    timeline = attempt.timeline
    return Answered(
        at=timeline.clock.monotonic(),
        sequences=attempt.call.sequences,
        events=timeline.outputs,
        first_at=timeline.first_output_at,
        later=timeline.outputs_since_first,
        tokens=None if timeline.usage is None else timeline.usage.output_tokens,
    )


def compare(attempt: Attempt, work: LegWork, usage: Usage | None) -> None:
    """What the engine of a leg has counted, beside what was expected of it."""
    if usage is not None:
        _learn_parity(attempt, work.booking, usage)
        _learn_hits(attempt, work, usage)


def _learn_parity(attempt: Attempt, booking: Booking, usage: Usage) -> None:
    """Where the engine's count can differ from ours only because its ids do."""
    call, request = attempt.call, attempt.call.request
    if call.own_tokens is None or attempt.timeline.by_ids or request.indivisible or request.adapter is not None:
        return
    parity, endpoint = call.serving.tokens.parity, booking.endpoint
    if usage.prompt_tokens is not None:
        parity.compare_counts(endpoint.name, FORMS[request.kind], call.own_tokens, usage.prompt_tokens)
    if usage.cached_tokens is not None and call.exact_on(endpoint):
        parity.compare_hits(endpoint.name, booking.expected_hit, usage.cached_tokens)


def _learn_hits(attempt: Attempt, work: LegWork, usage: Usage) -> None:
    call = attempt.call
    if usage.cached_tokens is None:
        return
    attempt.decision.cached_tokens = usage.cached_tokens
    if not call.prompt.single:
        return
    work.reported(usage.cached_tokens)
    endpoint, model, observer = work.booking.endpoint, attempt.model_name, attempt.observer
    if usage.prompt_tokens is not None:
        observer.hits_reported(model, endpoint.name, usage.prompt_tokens, usage.cached_tokens)
    if call.prompt.whole and call.exact_on(endpoint):
        observer.hits_compared(model, endpoint.name, work.booking.expected_hit, usage.cached_tokens)
