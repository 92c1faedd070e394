"""Where a request would go now, and why: the director's verbs up to the plan, and nothing of what follows it.

Nothing is admitted, reserved, predicted or remembered, and no engine is asked.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.api.parse import Call, parse
from gateway.api.routes import Route
from gateway.api.settings import PassSettings
from gateway.errors import GatewayError, NoEndpoint
from gateway.fleet.fleet import Fleet
from gateway.framework import Clock, Endpoint, Prompt, Request, Role
from gateway.kvcache.keys import BlockKeys
from gateway.kvcache.pace import Pace
from gateway.proxy.account import Terms, of_match, of_plan, of_step
from gateway.proxy.decisions import step_of
from gateway.proxy.directory import Directory, Serving
from gateway.proxy.identify import identify, tokenized
from gateway.proxy.stored import StoredResponses, kept_at
from gateway.scheduling.rehearsal import rehearsal
from gateway.scheduling.scheduler import Scheduler
from gateway.scheduling.trace import ProfileTrace, Trace

log = logging.getLogger("kvgate.explain")

REQUEST_ID = "explain"

Following = Callable[[Endpoint], tuple[str, float | None]]
"""The state of an endpoint's KV event stream, and seconds since its last message."""


@dataclass(frozen=True, slots=True)
class Explainer:
    """For one configuration. ``following``: what is known of the endpoints' event streams."""

    directory: Directory
    scheduler: Scheduler
    fleet: Fleet
    passing: PassSettings
    stored: StoredResponses
    pace: Pace
    following: Following
    clock: Clock

    async def explain(
        self, route: Route, raw: bytes, content_type: str, headers: Mapping[str, str], cookie: str = ""
    ) -> dict[str, Any]:
        """As JSON; ``error`` in it says why the request could not be placed. ``headers``, ``cookie``: as for
        ``identify``.

        Raises GatewayError where it could not be understood.
        """
        call = parse(route, raw, content_type, self.passing)
        arrived = self.clock.monotonic()
        serving, request = identify(
            call, self.directory, request_id=REQUEST_ID, arrived=arrived, headers=headers, cookie=cookie
        )
        request.bound = call.previous_response is not None
        prompt = await serving.tokens.tokenize(call.input, room=lambda: self.directory.room(serving.model))
        keys = tokenized(serving, request, prompt)
        await self.pace.catch_up()
        return self._decide(serving, request, call, prompt, keys)

    def _decide(
        self, serving: Serving, request: Request, call: Call, prompt: Prompt, keys: BlockKeys
    ) -> dict[str, Any]:
        """Without an await: what is told is of the moment of the decision."""
        trace, error = Trace(), None
        scheduler = rehearsal(self.scheduler)
        every = self.fleet.endpoints(serving.model)
        endpoints: Sequence[Endpoint] = self.directory.candidates(
            serving.model, request.adapter, draining=request.bound
        )
        out = {one.name: _out(one, request) for one in every if one not in endpoints}
        try:
            if call.previous_response is not None:
                home = kept_at(self.stored.engine_of(call.previous_response, every), endpoints)
                out |= {one.name: "does not keep the previous response" for one in endpoints if one not in home}
                endpoints = home
            if not endpoints:
                raise NoEndpoint(f"No endpoint of model {serving.model.name!r} may be used.")
            request.matches = serving.index.match(keys, request.prompt_tokens, endpoints)
            scheduler.schedule(request, endpoints, trace)
        except GatewayError as failed:
            error = failed
        plan = trace.plan if error is None else None
        return {
            "model": serving.model.name,
            "adapter": request.adapter,
            "kind": str(request.kind),
            "stream": request.stream,
            "prompt_tokens": request.prompt_tokens,
            "exact": request.exact,
            "estimated": prompt.why or None,
            "tokens": serving.tokens.state,
            "block_size": keys.unit,
            "max_tokens": request.max_tokens,
            "expected_output": request.expected_output,
            "indivisible": request.indivisible or None,
            "session": request.session,
            "slo": None if request.slo is None else {"ttft": request.slo.ttft, "tpot": request.slo.tpot},
            "handler": serving.model.handler,
            "plan": None if plan is None else of_plan(plan) | {"new_tokens": request.new_tokens(plan.decode)},
            "error": None if error is None else {"message": error.message, "status": error.status},
            "profiles": [
                of_step(step_of(profile), request.matches, _terms(scheduler, profile, request))
                for profile in trace.profiles
            ],
            "endpoints": [self._state(one, serving, request, keys) for one in endpoints],
            "left_out": [{"endpoint": name, "why": why} for name, why in out.items()],
        }

    def _state(self, endpoint: Endpoint, serving: Serving, request: Request, keys: BlockKeys) -> dict[str, Any]:
        """What is known of an endpoint. Ages in seconds."""
        match, load, metrics, engine = request.matches[endpoint.slot], endpoint.load, endpoint.metrics, endpoint.engine
        cost, new = self.fleet.cost(endpoint), request.new_tokens(endpoint)
        scalars, sums = cost.scalars, load.sums(self.clock.monotonic())
        first = scalars.first_token(sums, match, request.prompt_tokens, decodes=endpoint.role is not Role.PREFILL)
        events, heard = self.following(endpoint)
        told = of_match(match)
        told["match"] |= {
            "believed": "events" if serving.index.is_told(endpoint.slot, keys) else "estimate",
            "event_stream": events,
            "event_age": heard,
        }
        return {
            "endpoint": endpoint.name,
            "role": str(endpoint.role),
            "labels": dict(endpoint.labels),
            "engine": {
                "up": engine.up,
                "down_reason": engine.down_reason or None,
                "version": engine.version,
                "latency": engine.latency,
            },
            "warmth": endpoint.warmth,
            "draining": endpoint.draining,
            **told,
            "new_tokens": new,
            "ledger": {
                "requests": load.requests,
                "prefill_tokens": load.prefill_tokens,
                "kv_tokens": load.kv_tokens,
                "foreign_requests": load.foreign_requests,
                "foreign_kv_tokens": load.foreign_kv_tokens,
            },
            "scrape": {
                "age": None if metrics.at is None else self.clock.monotonic() - metrics.at,
                "running": metrics.running,
                "waiting": metrics.waiting,
                "kv_usage": metrics.kv_usage,
                "kv_capacity": metrics.kv_capacity,
            },
            "cost": {
                "ttft": first.seconds,
                "prefill": first.prefill,
                "step": scalars.step_seconds(sums[0] + 1, sums[4]),
                "prefill_scale": cost.prefill_scale,
                "step_scale": cost.step_scale,
                "scalars": scalars._asdict(),
            },
        }


def _out(endpoint: Endpoint, request: Request) -> str:
    """Why it is no candidate."""
    if request.adapter is not None and request.adapter not in endpoint.engine.served:
        return "has not loaded the adapter"
    return "draining"


def _terms(scheduler: Scheduler, profile: ProfileTrace, request: Request) -> Terms:
    """What the scorers that can say so make their scores of. One that fails to is left out: nothing depends on it."""
    terms: dict[str, dict[str, Mapping[str, float]]] = {}
    for name, plugin, _ in scheduler.profiles[profile.name].scorers:
        explain = getattr(plugin, "explain", None)
        if explain is None or name in profile.silent:
            continue
        for scored in profile.scored:
            try:
                told = {str(term): float(value) for term, value in explain(request, scored.endpoint).items()}
            except Exception as error:
                log.warning("the scorer %r could not explain its score: %r", name, error)
                break
            terms.setdefault(scored.endpoint.name, {})[name] = told
    return terms
