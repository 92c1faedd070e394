"""What is reported of a request when it has ended: its log line, which is counted, too."""

from __future__ import annotations

from gateway.api.routes import Route
from gateway.core.observer import Observer, Settled
from gateway.framework import Request
from gateway.framework.request import PREFILL
from gateway.proxy.serving.goodput import Verdict, judge
from gateway.proxy.serving.timeline import Figures, Timeline


def settle(request_id: str, route: Route, timeline: Timeline, observer: Observer) -> None:
    """Report the request to ``observer``, and with its last decision. It has given everything back."""
    request = timeline.request
    placed = [record for record in timeline.records if record.error is None]
    last = placed[-1] if placed else None
    booked = None if last is None else last.booked
    usage, figures, grant = timeline.usage, timeline.figures(), timeline.grant
    settled = Settled(
        request_id=request_id,
        model=request.model.name if request else "",
        route=route.path,
        outcome=timeline.outcome,
        status=timeline.status,
        stream=request.stream if request else False,
        endpoint=last.legs[-1][1] if last else None,
        attempts=len(placed),
        prompt_tokens=request.prompt_tokens if request else 0,
        exact=last.agrees if last else request is not None and request.exact,
        expected_hit=booked.expected_hit if booked else 0,
        duration=figures.duration,
        queue_wait=timeline.queue_wait,
        overhead=figures.overhead,
        phase=str(timeline.phase),
        match_source=str(booked.source) if booked else "none",
        ttft=figures.ttft,
        output_tokens=figures.output_tokens,
        reported_prompt_tokens=usage.prompt_tokens if usage else None,
        cached_tokens=usage.cached_tokens if usage else None,
        plan=last.reason if last else "",
        prefill_endpoint=last.endpoint(PREFILL) if last and len(last.legs) > 1 else None,
        prefill_time=timeline.prefill_time,
        fallback=timeline.fallback or None,
        error=timeline.error,
        slo=None if request is None or request.slo is None else _verdict(timeline, figures, request),
        by_ids=timeline.by_ids,
        hits=timeline.hits,
        counted=timeline.counted,
        tenant="" if grant is None else grant.caller.tenant.name,
        key="" if grant is None else grant.caller.key or "",
        charge=None if grant is None else grant.charge,
    )
    if timeline.records:
        timeline.records[-1].settled = settled
    observer.settled(settled)


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
