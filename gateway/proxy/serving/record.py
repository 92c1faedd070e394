"""What is reported of a request when it has ended: its log line, which is counted, too."""

from __future__ import annotations

from gateway.api.routes import Route
from gateway.core.observer import Settled
from gateway.framework import Request
from gateway.proxy.serving.attempt import Attempt
from gateway.proxy.serving.call import IncomingRequest
from gateway.proxy.serving.goodput import Verdict, judge
from gateway.proxy.serving.timeline import Figures, Timeline


def line(
    request_id: str, route: Route, timeline: Timeline, incoming: IncomingRequest | None, attempt: Attempt | None
) -> Settled:
    """For the log and the metrics. ``incoming``: None where the body could not be read. ``attempt``: the last one; None
    where the request was never placed."""
    request = None if incoming is None else incoming.request
    plan = None if attempt is None else attempt.plan
    booked = None if attempt is None else attempt.booked
    usage, figures, exact = timeline.usage, timeline.figures(), request is not None and request.exact
    if attempt is not None:
        exact = exact and attempt.call.exact_on(attempt.plan.decode)
    return Settled(
        request_id=request_id,
        model=request.model.name if request else "",
        route=route.path,
        outcome=timeline.outcome,
        status=timeline.status,
        stream=request.stream if request else False,
        endpoint=plan.decode.name if plan else None,
        attempts=timeline.attempts,
        prompt_tokens=request.prompt_tokens if request else 0,
        exact=exact,
        expected_hit=booked.expected_hit if booked else 0,
        duration=figures.duration,
        queue_wait=timeline.queue_wait,
        overhead=figures.overhead,
        phase=str(timeline.phase),
        match_source=str(request.matches[booked.endpoint.slot].source) if request and booked else "none",
        ttft=figures.ttft,
        output_tokens=figures.output_tokens,
        reported_prompt_tokens=usage.prompt_tokens if usage else None,
        cached_tokens=usage.cached_tokens if usage else None,
        plan=plan.reason if plan else "",
        prefill_endpoint=plan.prefill.name if plan and plan.prefill else None,
        prefill_time=timeline.prefill_time,
        fallback=timeline.fallback or None,
        error=timeline.error,
        slo=None if request is None or request.slo is None else _verdict(timeline, figures, request),
        by_ids=timeline.by_ids,
        hits=timeline.hits,
        counted=timeline.counted,
    )


def _verdict(timeline: Timeline, figures: Figures, request: Request) -> Verdict | None:
    return judge(
        request.slo,
        kind=request.kind,
        stream=request.stream,
        status=timeline.status,
        outcome=timeline.outcome,
        duration=figures.duration,
        ttft=figures.ttft,
        output_tokens=figures.output_tokens,
    )
