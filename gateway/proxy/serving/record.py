"""What is reported of a request when it has ended: to plugins, and in its log line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.core.observer import Settled
from gateway.framework import Outcome, Request
from gateway.proxy.serving.goodput import Verdict, judge
from gateway.proxy.serving.timeline import Timeline

if TYPE_CHECKING:
    from gateway.proxy.serving.exchange import Exchange


def outcome(timeline: Timeline, result: str) -> Outcome:
    """For plugins. ``result``: how the attempt ended."""
    usage = timeline.usage
    return Outcome(
        outcome=result,
        status=timeline.status,
        duration=timeline.duration,
        ttft=timeline.ttft,
        prompt_tokens=usage.prompt_tokens if usage else None,
        cached_tokens=usage.cached_tokens if usage else None,
        output_tokens=timeline.output_tokens,
    )


def line(exchange: Exchange) -> Settled:
    """For the log and the metrics."""
    timeline, asked, attempt = exchange.timeline, exchange.asked, exchange.attempt
    request = None if asked is None else asked.request
    plan = None if attempt is None else attempt.plan
    booked = None if attempt is None else attempt.booked
    usage, exact = timeline.usage, request is not None and request.exact
    if attempt is not None:
        exact = exact and attempt.call.exact_on(attempt.plan.decode)
    return Settled(
        request_id=exchange.id,
        model=exchange.model_name,
        route=exchange.route.path,
        outcome=timeline.outcome,
        status=timeline.status,
        stream=request.stream if request else False,
        endpoint=plan.decode.name if plan else None,
        attempts=len(timeline.placements),
        prompt_tokens=request.prompt_tokens if request else 0,
        exact=exact,
        expected_hit=booked.expected_hit if booked else 0,
        duration=timeline.duration,
        queue_wait=timeline.queue_wait,
        overhead=timeline.overhead,
        phase=str(timeline.phase),
        match_source=str(request.matches[booked.endpoint.slot].source) if request and booked else "none",
        ttft=timeline.ttft,
        output_tokens=timeline.output_tokens,
        reported_prompt_tokens=usage.prompt_tokens if usage else None,
        cached_tokens=usage.cached_tokens if usage else None,
        plan=plan.reason if plan else "",
        prefill_endpoint=plan.prefill.name if plan and plan.prefill else None,
        prefill_time=timeline.prefill_time,
        fallback=timeline.fallback or None,
        error=timeline.error,
        slo=None if request is None or request.slo is None else _verdict(timeline, request),
        by_ids=timeline.by_ids,
        placements=timeline.placements,
        legs=timeline.legs,
        hits=timeline.hits,
        counted=timeline.counted,
    )


def _verdict(timeline: Timeline, request: Request) -> Verdict | None:
    return judge(
        request.slo,
        kind=request.kind,
        stream=request.stream,
        status=timeline.status,
        outcome=timeline.outcome,
        duration=timeline.duration,
        ttft=timeline.ttft,
        output_tokens=timeline.output_tokens,
    )
