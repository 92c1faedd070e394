"""Explains where a request would go now, and why. It parses, identifies, tokenizes and decides as a request does, with
the same functions, and stops there.

It does not admit or book anything, and sends nothing to an engine.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from math import inf
from typing import Any

from gateway.api.body import JsonBody
from gateway.api.parse import parse
from gateway.api.routes import Route
from gateway.api.settings import PassThroughSettings
from gateway.errors import GatewayError
from gateway.fleet.fleet import Fleet
from gateway.framework import Clock, Endpoint, Plan, Request
from gateway.framework.request import DECODE
from gateway.kvcache.events.poller import Poller
from gateway.kvcache.index.keys import BlockKeys
from gateway.placement.decision import Decision, Terms, match_json
from gateway.placement.placing import decide
from gateway.proxy.serving.call import Call, IncomingRequest
from gateway.proxy.serving.identify import identify, tokenized
from gateway.proxy.serving.model_directory import ModelDirectory, ModelRuntime
from gateway.proxy.serving.queueing import ModelQueue
from gateway.proxy.serving.response_affinity import ResponseAffinity
from gateway.scheduling.rehearsal import rehearsal
from gateway.scheduling.scheduler import Scheduler
from gateway.scheduling.trace import ProfileRun, Trace
from gateway.tenants.directory import Directory

log = logging.getLogger("kvgate.explain")

REQUEST_ID = "explain"

Following = Callable[[Endpoint], tuple[str, float | None]]
"""The state of an endpoint's KV event stream, and seconds since its last message."""


@dataclass(frozen=True, slots=True)
class Explainer:
    """For one configuration. ``following``: the state of the endpoints' event streams. ``tenants``: whom a
    request may be for. ``queues``: by model, of those that have one. ``in_use``: keeps the parts of
    the configuration open, tokenizers included, while an explanation runs."""

    directory: ModelDirectory
    scheduler: Scheduler
    fleet: Fleet
    passing: PassThroughSettings
    stored: ResponseAffinity
    poller: Poller
    following: Following
    queues: Mapping[str, ModelQueue]
    tenants: Directory
    in_use: Callable[[], AbstractContextManager[None]]
    clock: Clock

    async def explain(
        self,
        route: Route,
        raw: bytes,
        content_type: str,
        headers: Mapping[str, str],
        cookie: str = "",
        tenant: str = "",
    ) -> dict[str, Any]:
        """As JSON; ``error`` in it says why the request could not be placed. ``headers``, ``cookie``: as for
        ``identify``. ``tenant``: whom it is for; empty: the one that the tenants' header names, be it trusted or not.

        Raises GatewayError if the request could not be parsed.
        """
        parsed = parse(route, raw, content_type, self.passing)
        arrived, header = self.clock.monotonic(), self.tenants.roster.header
        caller = self.tenants.tenant(tenant or headers.get(header, ""))
        if header:
            headers = {name: value for name, value in headers.items() if name != header}
        runtime, request = identify(
            *(parsed, self.directory),
            request_id=REQUEST_ID,
            arrived=arrived,
            headers=headers,
            cookie=cookie,
            caller=caller,
        )
        request.bound = parsed.previous_response is not None
        with self.in_use():
            prompt = await runtime.tokens.tokenize(
                parsed.input, longest_context=lambda: self.directory.longest_context(runtime.model)
            )
            keys = tokenized(runtime, request, prompt)
            await self.poller.catch_up()
            incoming = IncomingRequest(REQUEST_ID, route, (), parsed.body, runtime, request, parsed.n, "", inf)
            return self._decide(Call.of(incoming, prompt, keys), parsed.previous_response)

    def _decide(self, call: Call, previous_response: str | None) -> dict[str, Any]:
        """Without an await, so that the reported state is the one at the decision. ``previous_response``: the id of
        the response with which it goes on."""
        runtime, request, keys = call.runtime, call.request, call.keys
        scheduler = rehearsal(self.scheduler)
        every = self.fleet.endpoints(runtime.model)
        could = self.directory.candidates(runtime.model, request.adapter, draining=request.bound)
        out = {one.name: _out(one, request) for one in every if one not in could}
        endpoints, trace, queue = could, Trace({}), self.queues.get(runtime.model.name)
        if queue is not None:
            request.ahead = queue.held.lines.ahead(request)
        try:
            pinned_url = ""
            if previous_response is not None:
                pinned_url = self.stored.engine_of(previous_response, every)
            endpoints = self.directory.eligible(request, pinned_url)
            out |= {one.name: "does not keep the previous response" for one in could if one not in endpoints}
            form = not isinstance(call.body, JsonBody)
            made: Plan | GatewayError = decide(call, endpoints, runtime.index, scheduler, trace, form=form)
        except GatewayError as error:
            made = error
        decision = Decision.of(request, made, trace.runs)
        by_name = {endpoint.name: endpoint for endpoint in endpoints}
        explained = decision.to_json([_terms(scheduler, run, request, by_name) for run in decision.runs])
        if (decode := decision.endpoint(DECODE)) is not None:
            explained["plan"]["new_tokens"] = request.new_tokens(by_name[decode])
        return {
            **explained,
            "estimated": call.prompt.why or None,
            "tokens": runtime.tokens.state,
            "block_size": keys.unit,
            "indivisible": request.indivisible or None,
            "session": request.session,
            "tenant": request.tenant.name,
            "band": request.band,
            "slo": None if request.slo is None else {"ttft": request.slo.ttft, "tpot": request.slo.tpot},
            "queue": None if queue is None else _queue(queue, call, made, self.clock.monotonic()),
            "error": {"message": made.message, "status": made.status} if isinstance(made, GatewayError) else None,
            "endpoints": [self._state(one, runtime, request, keys) | _room(one, request, queue) for one in endpoints],
            "left_out": [{"endpoint": name, "why": why} for name, why in out.items()],
        }

    def _state(self, endpoint: Endpoint, runtime: ModelRuntime, request: Request, keys: BlockKeys) -> dict[str, Any]:
        """The state of an endpoint. Ages in seconds."""
        match, load, metrics, engine = request.matches[endpoint.slot], endpoint.load, endpoint.metrics, endpoint.engine
        cost, new = self.fleet.cost(endpoint), request.new_tokens(endpoint)
        scalars, sums = cost.scalars, load.sums(self.clock.monotonic())
        first = scalars.first_token(sums, match, request.prompt_tokens)
        events, heard = self.following(endpoint)
        held = match_json(match)
        held["match"] |= {
            "believed": "events" if runtime.index.covers(endpoint.slot, keys) else "estimate",
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
            **held,
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


def _queue(queue: ModelQueue, call: Call, made: Plan | GatewayError, now: float) -> dict[str, Any]:
    """What waits, and whether the request would. ``now``: Clock.monotonic()."""
    view = queue.view()
    waits: dict[str, Any] | None = None
    if isinstance(made, Plan):
        endpoint, reason = queue.held.room.lacks(call, made, now)
        if endpoint is None and (before := [e for _, e in made.legs if queue.held.lines.of_line(e.slot)]):
            endpoint, reason = before[0], "turn"
        if endpoint is not None:
            waits = {"endpoint": endpoint.name, "reason": reason}
    return {
        "waiting": sum(view.waiting.values()),
        "seconds": view.seconds,
        "oldest": view.oldest,
        "would_wait_for": waits,
    }


def _room(endpoint: Endpoint, request: Request, queue: ModelQueue | None) -> dict[str, Any]:
    """Whether the endpoint has room, and the seconds of work that wait for it and would be served before."""
    if queue is None:
        return {}
    found = {room.endpoint: room for room in queue.view().rooms}
    if (room := found.get(endpoint.name)) is None:
        return {"room": None}
    ahead = request.ahead.get(endpoint.slot, 0.0)
    return {
        "room": {
            "saturation": room.saturation,
            "full_by": room.reason or None,
            "factor": room.factor,
            "waiting": queue.held.lines.of_line(endpoint.slot),
            "ahead": ahead,
        }
    }


def _out(endpoint: Endpoint, request: Request) -> str:
    """Why the endpoint is not a candidate."""
    if request.adapter is not None and request.adapter not in endpoint.engine.served:
        return "has not loaded the adapter"
    return "draining"


def _terms(scheduler: Scheduler, run: ProfileRun, request: Request, by_name: Mapping[str, Endpoint]) -> Terms:
    """The terms of the scores, from those scorers that have ``explain``. A scorer whose ``explain`` raises is left
    out. ``by_name``: all candidates."""
    terms: dict[str, dict[str, Mapping[str, float]]] = {}
    scores = run.scores()
    for name, plugin, _ in scheduler.profiles[run.profile].scorers:
        explain = getattr(plugin, "explain", None)
        if explain is None or name in run.silent:
            continue
        for endpoint in scores:
            try:
                values = {str(term): float(value) for term, value in explain(request, by_name[endpoint]).items()}
            except Exception as error:
                log.warning("the scorer %r could not explain its score: %r", name, error)
                break
            terms.setdefault(endpoint, {})[name] = values
    return terms
