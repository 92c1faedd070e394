"""What is told of a request when it has ended: to plugins, and in its log line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.framework import Outcome, Settled
from gateway.proxy.goodput import Verdict, judge

if TYPE_CHECKING:
    from gateway.proxy.exchange import Exchange


def told(exchange: Exchange, result: str) -> Outcome:
    """For plugins. ``result``: how the placement ended."""
    return Outcome(
        outcome=result,
        status=exchange.status,
        duration=exchange.clock.monotonic() - exchange.arrived,
        ttft=exchange.ttft,
        prompt_tokens=exchange.usage.prompt_tokens if exchange.usage else None,
        cached_tokens=exchange.usage.cached_tokens if exchange.usage else None,
        output_tokens=exchange.output_tokens,
    )


def line(exchange: Exchange) -> Settled:
    """For the log and the metrics."""
    request, usage, plan, booked = exchange.request, exchange.usage, exchange.plan, exchange.booked
    ready_at = exchange.received_at if exchange.received_at is not None else exchange.arrived
    return Settled(
        request_id=exchange.id,
        model=exchange.model_name,
        route=exchange.route.path,
        outcome=exchange.outcome,
        status=exchange.status,
        stream=request.stream if request else False,
        endpoint=plan.decode.name if plan else None,
        attempts=exchange.legs,
        prompt_tokens=request.prompt_tokens if request else 0,
        exact=request is not None and request.exact and (plan is None or exchange.exact_on(plan.decode)),
        expected_hit=booked.expected_hit if booked else 0,
        duration=exchange.clock.monotonic() - exchange.arrived,
        queue_wait=exchange.queue_wait,
        overhead=max(0.0, exchange.sent_at - ready_at - exchange.queue_wait) if exchange.sent_at is not None else 0.0,
        phase=str(exchange.phase),
        match_source=str(request.matches[booked.endpoint.slot].source) if request and booked else "none",
        ttft=exchange.ttft,
        output_tokens=exchange.output_tokens,
        reported_prompt_tokens=usage.prompt_tokens if usage else None,
        cached_tokens=usage.cached_tokens if usage else None,
        plan=plan.reason if plan else "",
        prefill_endpoint=plan.prefill.name if plan and plan.prefill else None,
        prefill_time=exchange.prefill_time,
        fallback=exchange.fallback,
        error=exchange.error,
        slo=_verdict(exchange),
        by_ids=exchange.by_ids,
    )


def _verdict(exchange: Exchange) -> Verdict | None:
    request = exchange.request
    if request is None or request.slo is None:
        return None
    return judge(
        request.slo,
        kind=request.kind,
        stream=request.stream,
        status=exchange.status,
        outcome=exchange.outcome,
        duration=exchange.clock.monotonic() - exchange.arrived,
        ttft=exchange.ttft,
        output_tokens=exchange.output_tokens,
    )
