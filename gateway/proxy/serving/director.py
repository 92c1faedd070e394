"""The way of a request, as a list of verbs: receive, parse, admit, tokenize, match, schedule, reserve, forward, relay,
settle. Each lives in the room that its call names; here is only their order, and what happens when one fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gateway.api.body import JsonBody
from gateway.api.headers import visible
from gateway.api.lax import truth
from gateway.api.parse import Parsed, parse
from gateway.api.prompts import TRUE
from gateway.api.responses import read_id
from gateway.api.routes import Route
from gateway.api.settings import PassSettings
from gateway.core.observer import Observer
from gateway.core.prompt import Prompt
from gateway.errors import GatewayError, NoEndpoint
from gateway.fleet.fleet import Fleet
from gateway.framework import Clock, Kind
from gateway.kvcache.events.poller import Poller
from gateway.placement.placing import book, decide
from gateway.proxy.extras.prompt_questions import PromptQuestions
from gateway.proxy.extras.response_affinity import ResponseAffinity
from gateway.proxy.extras.token_audit import TokenAudit
from gateway.proxy.memory import Memory
from gateway.proxy.serving.attempt import Attempt
from gateway.proxy.serving.call import Asked, Call
from gateway.proxy.serving.client import Client, ClientGone
from gateway.proxy.serving.decisions import Decisions
from gateway.proxy.serving.exchange import Exchange
from gateway.proxy.serving.forward import Forwarder
from gateway.proxy.serving.handover import Handover
from gateway.proxy.serving.identify import client_of, identify, tokenized
from gateway.proxy.serving.model_directory import ModelDirectory
from gateway.proxy.serving.relay import relay, relay_held
from gateway.proxy.serving.timeline import Phase, Timeline
from gateway.proxy.settings import ListenSettings, RetrySettings, TimeoutSettings
from gateway.proxy.upstream.commit import Committed
from gateway.proxy.upstream.legs import DeferredError, LegFailed, Retries
from gateway.scheduling.scheduler import Scheduler
from gateway.scheduling.trace import Trace


class Director:
    """Takes a request through the gateway. Holds no state of any request: an ``Exchange`` does.

    One for each configuration, so that a request ends under the one with which it began. ``stored``, ``decisions``: all
    of them have these in common.
    """

    def __init__(
        self,
        *,
        directory: ModelDirectory,
        fleet: Fleet,
        scheduler: Scheduler,
        forwarder: Forwarder,
        handover: Handover,
        questions: PromptQuestions,
        token_audit: TokenAudit,
        listen: ListenSettings,
        timeouts: TimeoutSettings,
        retries: RetrySettings,
        passing: PassSettings,
        poller: Poller,
        stored: ResponseAffinity,
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
        self._token_audit = token_audit
        self._listen = listen
        self._timeouts = timeouts
        self._retries = retries
        self._passing = passing
        self._poller = poller
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

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Whatever is done by this configuration meanwhile counts as a request."""
        self._running += 1
        try:
            yield
        finally:
            self._ended()

    async def handle(self, client: Client, route: Route, request_id: str) -> None:
        """Answer one request. Raises GatewayError while nothing has gone to the client; CancelledError if it left."""
        self._running += 1
        exchange = self._begin(route, request_id)
        try:
            await self._prepare(exchange, client)
            await self._answer(exchange, client)
        except GatewayError as error:
            exchange.failed(error)
            raise
        except (asyncio.CancelledError, ClientGone):
            exchange.cancelled()
            raise
        except BaseException:
            exchange.timeline.status, exchange.timeline.outcome = 500, "bug"
            raise
        finally:
            try:
                exchange.settle()
                if exchange.questions is not None and exchange.timeline.outcome == "ok":
                    self._token_audit.ask(exchange.call.serving, exchange.questions)
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
        timeline = Timeline(self._clock, self._clock.monotonic())
        return Exchange(request_id, route, timeline, self._memory.share(), self._observer)

    async def _prepare(self, exchange: Exchange, client: Client) -> None:
        """Receive, parse, admit, tokenize. What was read is kept by ``exchange`` alone: an answer may take an hour."""
        limit, timeout = self._listen.max_body, self._timeouts.receive
        raw = await client.receive(limit=limit, timeout=timeout, share=exchange.share)
        exchange.timeline.received()
        parsed = parse(exchange.route, raw, client.header("Content-Type"), self._passing)
        exchange.asked = asked = self._identify(exchange, parsed, client)
        asked.serving.budget.deposit()
        await self._admit(exchange, asked)
        exchange.timeline.enter(Phase.TOKENIZING)
        prompt = await self._tokenize(asked, parsed, client.remote)
        exchange.asked = Call.of(asked, prompt, tokenized(asked.serving, asked.request, prompt))
        exchange.timeline.enter(Phase.BEFORE_COMMIT)

    def _identify(self, exchange: Exchange, parsed: Parsed, client: Client) -> Asked:
        headers = client.headers
        serving, request = identify(
            parsed,
            self._directory,
            request_id=exchange.id,
            arrived=exchange.timeline.arrived,
            headers=visible(headers),
            cookie=client.header("Cookie"),
        )
        home = ""
        if parsed.previous_response is not None:
            home = self._stored.engine_of(parsed.previous_response, self._fleet.endpoints(serving.model))
            request.bound = True
        return Asked(exchange.id, exchange.route, headers, parsed.body, serving, request, parsed.n, home)

    async def _admit(self, exchange: Exchange, asked: Asked) -> None:
        admission = asked.serving.admission
        exchange.permit = admission.try_acquire()
        if exchange.permit is not None:
            return
        exchange.timeline.enter(Phase.QUEUED)
        began = self._clock.monotonic()
        exchange.permit = await admission.acquire()
        exchange.timeline.queue_wait = self._clock.monotonic() - began

    async def _tokenize(self, asked: Asked, parsed: Parsed, remote: str | None) -> Prompt:
        tokens = asked.serving.tokens
        if tokens.may_ask_first:
            prompt = await self._questions.prompt(asked, parsed)
            if prompt is not None:
                return tokens.from_engine(parsed.input, prompt)
        return await tokens.tokenize(
            parsed.input,
            client=lambda: client_of(asked.headers, remote),
            room=lambda: self._directory.room(asked.serving.model),
        )

    async def _answer(self, exchange: Exchange, client: Client) -> None:
        """Place and forward until an answer is the client's, or no attempt is left."""
        retries = Retries(self._retries, exchange.call.serving.budget)
        failure: LegFailed | None = None
        held: DeferredError | None = None
        while True:
            await self._poller.catch_up()
            try:
                attempt = self._place(exchange, retries)
            except NoEndpoint:
                if held is not None and exchange.attempt is not None:
                    return await relay_held(held, client, exchange.attempt, idle=self._timeouts.idle)
                if failure is not None and failure.cause.sent:
                    raise failure.error() from failure
                raise
            try:
                with await self._commit(attempt) as committed:
                    return await self._relay(exchange, attempt, committed, client)
            except LegFailed as failed:
                failure = failed
                attempt.end(failure.result)
                if failure.held is not None:
                    held = failure.held
                    exchange.share.keep(len(held.body))
                if retries.may_try_another(failure):
                    continue
                if failure.held is not None:
                    return await relay_held(failure.held, client, attempt, idle=self._timeouts.idle)
                raise failure.error() from failure

    def _place(self, exchange: Exchange, retries: Retries) -> Attempt:
        """Decide and book. No await in here: concurrent requests must see each other's reservations."""
        call, timeline, before = exchange.call, exchange.timeline, exchange.attempt
        request, index, began, trace = call.request, call.serving.index, self._clock.monotonic(), Trace()
        # What has failed once is not tried again: its client has waited long enough.
        one_leg = "fell-back" if timeline.fallback else "" if isinstance(call.body, JsonBody) else "form"
        try:
            candidates = self._directory.eligible(request, call.home, retries.failed_on)
            plan = decide(request, call.keys, candidates, index, self._scheduler, trace, one_leg=one_leg)
        except GatewayError as error:
            exchange.decision = self._decisions.keep(request, timeline.attempts + 1, trace, error.message, began)
            raise
        prefill_result = None if before is None else before.prefill_result
        if prefill_result is not None and prefill_result.prefill is not plan.prefill:
            prefill_result = None
        now, prefilled = self._clock.monotonic(), prefill_result is not None
        placement = book(request, call.keys, plan, index, now, prefilled=prefilled)
        try:
            decision = self._decisions.keep(request, timeline.attempts + 1, trace, plan, began)
            attempt = Attempt(
                *(call, timeline, plan, placement, decision, retries, self._scheduler, self._observer),
                prefill_result=prefill_result,
                sent_as="" if before is None else before.sent_as,
            )
        except BaseException:  # a defect must not keep a place for ever
            placement.cancel()
            raise
        exchange.decision, exchange.attempt = decision, attempt
        attempt.begin()
        self._observer.decided(exchange.model_name, decision.decision.seconds)
        return attempt

    async def _commit(self, attempt: Attempt) -> Committed:
        """Send the plan's legs, until an answer may be the client's. Raises LegFailed."""
        if len(attempt.plan.legs) > 1:
            return await self._handover.commit(attempt)
        body = attempt.call.body
        if attempt.extras is not None and isinstance(body, JsonBody):
            body = body.copy()
            body.set("vllm_xargs", attempt.extras)
        return await self._forwarder.forward(attempt, attempt.plan.decode, body)

    async def _relay(self, exchange: Exchange, attempt: Attempt, committed: Committed, client: Client) -> None:
        if exchange.route.kind is Kind.RESPONSES and committed.status == 200:
            self._note_response(attempt, committed)
        if attempt.call.serving.tokens.parity.asks:
            exchange.questions = self._token_audit.choose(attempt)
        if committed.events is not None:
            exchange.forget_prompt()
        try:
            await relay(committed, client, attempt, idle=self._timeouts.idle)
        finally:  # whether its client has stayed to hear of it or not
            if attempt.broken is not None:
                self._forwarder.failed(attempt.broken)
            elif committed.events is not None and attempt.timeline.phase is Phase.DONE:
                self._forwarder.finished(committed.answer.endpoint)

    def _note_response(self, attempt: Attempt, committed: Committed) -> None:
        """Before its client has it, who could go on from it at once."""
        body = attempt.call.body
        if not isinstance(body, JsonBody):
            return
        response = read_id(committed.text, stream=committed.events is not None)
        if response is not None and truth(body.fields.get("store", TRUE)) is not False:
            self._stored.note(response, attempt.plan.decode)
