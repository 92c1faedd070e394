"""The way of a request, as a list of verbs: receive, parse, admit, tokenize, match, schedule, reserve, forward, relay,
settle. Each lives in the room that its call names; here is only their order, and what happens when one fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from aiohttp import web

from gateway.api.body import JsonBody
from gateway.api.headers import visible
from gateway.api.lax import truth
from gateway.api.parse import Call, parse
from gateway.api.prompts import TRUE
from gateway.api.responses import read_id
from gateway.api.routes import Route
from gateway.api.settings import PassSettings
from gateway.errors import GatewayError, NoEndpoint
from gateway.fleet.fleet import Fleet
from gateway.framework import Clock, Kind, Observer, Plan
from gateway.kvcache.pace import Pace
from gateway.proxy.commit import Committed
from gateway.proxy.decisions import Decisions
from gateway.proxy.directory import Directory
from gateway.proxy.exchange import Exchange, Phase
from gateway.proxy.forward import Forwarder
from gateway.proxy.handover import Handover
from gateway.proxy.identify import client_of, identify, tokenized
from gateway.proxy.legs import Attempts, LegFailed
from gateway.proxy.memory import Memory
from gateway.proxy.prompt_questions import PromptQuestions
from gateway.proxy.receive import receive
from gateway.proxy.relay import ClientGone, relay, relay_held
from gateway.proxy.settings import ListenSettings, RetrySettings, TimeoutSettings
from gateway.proxy.stored import StoredResponses, kept_at
from gateway.proxy.witness import Witness
from gateway.scheduling.scheduler import Scheduler
from gateway.scheduling.trace import Trace

NO_ENDPOINT_RETRY = 2.0
"""Seconds in ``Retry-After`` when every endpoint failed a request: about one scrape and one back-off."""


class Director:
    """Takes a request through the gateway. Holds no state of any request: an ``Exchange`` does.

    One for each configuration, so that a request ends under the one with which it began. ``stored``, ``decisions``: all
    of them have these in common.
    """

    def __init__(
        self,
        *,
        directory: Directory,
        fleet: Fleet,
        scheduler: Scheduler,
        forwarder: Forwarder,
        handover: Handover,
        questions: PromptQuestions,
        witness: Witness,
        listen: ListenSettings,
        timeouts: TimeoutSettings,
        retries: RetrySettings,
        passing: PassSettings,
        pace: Pace,
        stored: StoredResponses,
        decisions: Decisions,
        memory: Memory,
        clock: Clock,
        observer: Observer,
    ) -> None:
        self._directory = directory
        self._fleet = fleet
        self._scheduler = scheduler
        self._forwarder = forwarder
        self._handover = handover
        self._questions = questions
        self._witness = witness
        self._listen = listen
        self._timeouts = timeouts
        self._retries = retries
        self._passing = passing
        self._pace = pace
        self._stored = stored
        self._decisions = decisions
        self._memory = memory
        self._clock = clock
        self._observer = observer
        self._running = 0
        self._when_idle: Callable[[], None] | None = None

    def retire(self, then: Callable[[], None]) -> None:
        """No request begins here any more: call ``then`` once the last one has ended."""
        if self._running:
            self._when_idle = then
        else:
            then()

    async def handle(self, http: web.BaseRequest, route: Route, request_id: str) -> web.StreamResponse:
        """Answer one request. Raises GatewayError while nothing has gone to the client; CancelledError if it left."""
        self._running += 1
        exchange = self._begin(route, request_id)
        try:
            await self._prepare(exchange, http)
            return await self._answer(exchange, http)
        except GatewayError as error:
            exchange.failed(error)
            raise
        except (asyncio.CancelledError, ClientGone):
            exchange.cancelled()
            raise
        except BaseException:
            exchange.status, exchange.outcome = 500, "bug"
            raise
        finally:
            try:
                exchange.settle()
                self._witness.settled(exchange)
            finally:
                self._ended()

    def refused(self, route: Route, request_id: str, error: GatewayError) -> None:
        """Count and log a request that was refused before it was read."""
        exchange = self._begin(route, request_id)
        exchange.failed(error)
        exchange.settle()

    def _ended(self) -> None:
        self._running -= 1
        if not self._running and self._when_idle is not None:
            then, self._when_idle = self._when_idle, None
            then()

    def _begin(self, route: Route, request_id: str) -> Exchange:
        return Exchange(
            id=request_id,
            route=route,
            clock=self._clock,
            observer=self._observer,
            scheduler=self._scheduler,
            arrived=self._clock.monotonic(),
            share=self._memory.share(),
        )

    async def _prepare(self, exchange: Exchange, http: web.BaseRequest) -> None:
        """Receive, parse, admit, tokenize. What was read is kept by ``exchange`` alone: an answer may take an hour."""
        limit, timeout = self._listen.max_body, self._timeouts.receive
        raw = await receive(http, limit=limit, timeout=timeout, share=exchange.share)
        exchange.received()
        call = parse(exchange.route, raw, http.headers.get("Content-Type", ""), self._passing)
        self._identify(exchange, call, http)
        await self._admit(exchange)
        await self._tokenize(exchange, call, http)

    def _identify(self, exchange: Exchange, call: Call, http: web.BaseRequest) -> None:
        headers = list(http.headers.items())
        exchange.serving, exchange.request = identify(
            call,
            self._directory,
            request_id=exchange.id,
            arrived=exchange.arrived,
            headers=visible(headers),
            cookie=http.headers.get("Cookie", ""),
        )
        exchange.body, exchange.headers = call.body, headers
        exchange.sequences = call.n
        exchange.attempts = Attempts(self._retries, exchange.serving.budget)
        if call.previous_response is not None:
            endpoints = self._fleet.endpoints(exchange.serving.model)
            exchange.home = self._stored.engine_of(call.previous_response, endpoints)
            exchange.request.bound = True
        exchange.serving.budget.deposit()

    async def _admit(self, exchange: Exchange) -> None:
        assert exchange.serving is not None
        exchange.permit = exchange.serving.admission.enter_now()
        if exchange.permit is not None:
            return
        exchange.phase = Phase.QUEUED
        began = self._clock.monotonic()
        exchange.permit = await exchange.serving.admission.enter()
        exchange.queue_wait = self._clock.monotonic() - began

    async def _tokenize(self, exchange: Exchange, call: Call, http: web.BaseRequest) -> None:
        assert exchange.serving is not None
        assert exchange.request is not None
        exchange.phase = Phase.TOKENIZING
        prompt = await self._questions.prompt(exchange, call)
        if prompt is None:
            serving = exchange.serving
            prompt = await serving.tokens.tokenize(
                call.input,
                client=lambda: client_of(exchange.headers, http.remote),
                room=lambda: self._directory.room(serving.model),
            )
        else:
            prompt = exchange.serving.tokens.told(call.input, prompt)
        exchange.prompt = prompt
        exchange.own_tokens = None if prompt.own is None else len(prompt.own)
        exchange.keys = tokenized(exchange.serving, exchange.request, prompt)
        exchange.phase = Phase.BEFORE_COMMIT

    async def _answer(self, exchange: Exchange, http: web.BaseRequest) -> web.StreamResponse:
        """Place and forward until an answer is the client's, or no attempt is left."""
        assert exchange.attempts is not None
        while True:
            await self._pace.catch_up()
            try:
                plan = self._place(exchange)
            except NoEndpoint:
                if exchange.held is not None:
                    return await relay_held(exchange.held, http, exchange, idle=self._timeouts.idle)
                if exchange.failure is not None and exchange.failure.cause.sent:
                    raise exchange.failure.error() from exchange.failure
                raise
            try:
                with await self._commit(exchange, plan) as committed:
                    return await self._relay(exchange, committed, http)
            except LegFailed as failure:
                exchange.failure = failure
                if failure.held is not None:
                    exchange.held = failure.held
                    exchange.share.keep(len(failure.held.body))
                exchange.end_placement(failure.result)
                if exchange.attempts.may_try_another(failure):
                    continue
                if failure.held is not None:
                    return await relay_held(failure.held, http, exchange, idle=self._timeouts.idle)
                raise failure.error() from failure

    def _place(self, exchange: Exchange) -> Plan:
        """Match, schedule, reserve. No await in here: concurrent requests must see each other's reservations."""
        assert exchange.request is not None
        began, trace = self._clock.monotonic(), Trace()
        try:
            plan = self._decide(exchange, trace)
        except GatewayError as error:
            attempt = exchange.legs + 1
            exchange.decision = self._decisions.failed(exchange.request, attempt, trace, error.message, began)
            raise
        if exchange.parcel is not None and exchange.parcel.prefill is not plan.prefill:
            exchange.parcel = None
        exchange.place(plan, self._fleet, prefilled=exchange.parcel is not None)
        assert exchange.booked is not None
        exchange.decision = self._decisions.placed(exchange.request, exchange.legs, trace, plan, exchange.booked, began)
        self._observer.decided(exchange.model_name, exchange.decision.seconds)
        return plan

    def _decide(self, exchange: Exchange, trace: Trace) -> Plan:
        assert exchange.serving is not None
        assert exchange.request is not None
        assert exchange.keys is not None
        assert exchange.attempts is not None
        model, request = exchange.serving.model, exchange.request
        endpoints = self._directory.candidates(model, request.adapter, draining=request.bound)
        if exchange.home is not None:
            endpoints = kept_at(exchange.home, endpoints)
        if failed_on := exchange.attempts.failed_on:
            endpoints = [endpoint for endpoint in endpoints if endpoint.slot not in failed_on]
        if not endpoints:
            drained = not failed_on and any(one.draining for one in self._fleet.endpoints(model))
            why = "may be used: what could serve it is draining" if drained else "is left to try"
            raise NoEndpoint(f"No endpoint of model {model.name!r} {why}.", retry_after=NO_ENDPOINT_RETRY)
        request.matches = exchange.serving.index.match(exchange.keys, request.prompt_tokens, endpoints)
        plan = self._scheduler.schedule(request, endpoints, trace)
        if plan.prefill is not None and (exchange.fallback or not isinstance(exchange.body, JsonBody)):
            # What has failed once is not tried again: its client has waited long enough.
            plan = replace(plan, prefill=None, reason="fell-back" if exchange.fallback else "form")
        return plan

    async def _commit(self, exchange: Exchange, plan: Plan) -> Committed:
        """Send the plan's legs, until an answer may be the client's. Raises LegFailed."""
        assert exchange.body is not None
        if plan.prefill is None:
            body = exchange.body
            if exchange.extras is not None and isinstance(body, JsonBody):
                body = body.copy()
                body.set("vllm_xargs", exchange.extras)
            return await self._forwarder.forward(exchange, plan.decode, body)
        return await self._handover.commit(exchange, plan)

    async def _relay(self, exchange: Exchange, committed: Committed, http: web.BaseRequest) -> web.StreamResponse:
        if exchange.route.kind is Kind.RESPONSES and committed.status == 200:
            self._note_response(exchange, committed)
        self._witness.choose(exchange)
        if committed.events is not None:
            exchange.forget_prompt()
        try:
            return await relay(committed, http, exchange, idle=self._timeouts.idle)
        finally:  # whether its client has stayed to hear of it or not
            if exchange.broken is not None:
                self._forwarder.failed(exchange.broken)
            elif committed.events is not None and exchange.phase is Phase.DONE:
                self._forwarder.finished(committed.answer.endpoint)

    def _note_response(self, exchange: Exchange, committed: Committed) -> None:
        """Before its client has it, who could go on from it at once."""
        assert exchange.plan is not None
        assert isinstance(exchange.body, JsonBody)
        response = read_id(committed.text, stream=committed.events is not None)
        if response is not None and truth(exchange.body.fields.get("store", TRUE)) is not False:
            self._stored.note(response, exchange.plan.decode)
