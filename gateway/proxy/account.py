"""Decisions as JSON, those of the past and those that are asked for: one form for both, without a word of a prompt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.framework import NO_MATCH, Match, Plan, Settled
from gateway.proxy.decisions import Decision, Step

OUTCOME = (
    *("outcome", "status", "duration", "queue_wait", "overhead", "ttft", "prompt_tokens", "reported_prompt_tokens"),
    *("cached_tokens", "output_tokens", "attempts", "prefill_time", "fallback", "slo", "error"),
)
"""Of ``Settled``: what became of a request. Its times are from the request's arrival."""

Terms = Mapping[str, Mapping[str, Mapping[str, float]]]
"""By endpoint and scorer: what the score is made of."""


def of_decision(decision: Decision, now: float, wall: float) -> dict[str, Any]:
    """One decision of the past. ``now``, ``wall``: of the clock, both."""
    return {
        "at": wall - (now - decision.at),
        "request_id": decision.request_id,
        "attempt": decision.attempt,
        "model": decision.model,
        "adapter": decision.adapter,
        "kind": str(decision.kind),
        "stream": decision.stream,
        "prompt_tokens": decision.prompt_tokens,
        "exact": decision.exact,
        "max_tokens": decision.max_tokens,
        "expected_output": decision.expected_output,
        "seconds": decision.seconds,
        "handler": decision.handler,
        "plan": None if decision.plan is None else _plan(*decision.plan),
        "error": decision.error,
        "profiles": [of_step(step, decision.matches) for step in decision.steps],
        "predicted": _predicted(decision),
        "result": decision.result,
        "real": {"cached_tokens": decision.cached_tokens, "ttft": decision.first_token},
        "outcome": None if decision.settled is None else of_settled(decision.settled),
    }


def of_plan(plan: Plan) -> dict[str, Any]:
    prefill = None if plan.prefill is None else plan.prefill.name
    return _plan(plan.decode.name, prefill, plan.reason, plan.connector, plan.strict, plan.costs)


def _plan(
    decode: str, prefill: str | None, reason: str, connector: str, strict: bool, costs: Mapping[str, float]
) -> dict[str, Any]:
    """``costs``: in seconds, of what the handler has compared, by its own words; left out where it has not."""
    plan: dict[str, Any] = {"decode": decode, "prefill": prefill, "reason": reason}
    if costs:
        plan["costs"] = dict(costs)
    return plan if prefill is None else plan | {"connector": connector, "strict": strict}


def of_step(step: Step, matches: Mapping[int, Match], terms: Terms | None = None) -> dict[str, Any]:
    """One run of a profile: its candidates best first, then those that filters removed. ``terms``: where known.

    A scorer that failed is named with the kind of its error: the error's text is a plugin's own, and for the log.
    """
    removed_by = {name: by for by, names in step.removed for name in names}
    weights = list(step.weights.items())
    scored: dict[str, dict[str, Any]] = {}
    if step.columns or not weights:
        left = step.roster.names if step.scored is None else step.scored
        for number, name in enumerate(left):
            scores = {scorer: column[number] for (scorer, _), column in zip(weights, step.columns, strict=True)}
            scored[name] = {"score": sum(weight * scores[scorer] for scorer, weight in weights), "scores": scores}
    candidates = []
    for name, slot in zip(step.roster.names, step.roster.slots, strict=True):
        candidate: dict[str, Any] = {"endpoint": name, **of_match(matches.get(slot, NO_MATCH))}
        if name in removed_by:
            candidate["removed_by"] = removed_by[name]
        elif name in scored:
            candidate |= scored[name]
            if terms and terms.get(name):
                candidate["terms"] = terms[name]
        candidates.append(candidate)
    candidates.sort(key=lambda candidate: (-candidate.get("score", -1.0), candidate["endpoint"] != step.picked))
    return {
        "profile": step.profile,
        "filters": [{"filter": name, "removed": list(names)} for name, names in step.removed],
        "scorers": dict(step.weights),
        "failed_scorers": {name: why.partition(":")[0] for name, why in step.silent.items()},
        "candidates": candidates,
        "picked": step.picked,
    }


def of_match(match: Match) -> dict[str, Any]:
    return {
        "expected_hit": match.expected_hit,
        "match": {"gpu": match.gpu, "cpu": match.cpu, "storage": match.storage, "source": str(match.source)},
    }


def of_settled(settled: Settled) -> dict[str, Any]:
    return {name: getattr(settled, name) for name in OUTCOME}


def _predicted(decision: Decision) -> dict[str, Any] | None:
    booked = decision.booked
    if booked is None:
        return None
    return {
        "endpoint": booked.endpoint,
        "cached_tokens": booked.expected_hit,
        "new_tokens": booked.new_tokens,
        "ttft": booked.ttft,
        "prefill_tokens_ahead": booked.ahead,
        "requests_beside": booked.running,
        "kv_tokens_beside": booked.kv_tokens,
    }
