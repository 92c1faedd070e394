"""The first verbs of a request: receive, parse, admit, tokenize. They end with a ``Call``, which can be placed."""

from __future__ import annotations

from math import inf

from gateway.api.headers import visible
from gateway.api.known_chats import KnownChats
from gateway.api.parse import Parsed, parse
from gateway.api.routes import Dialect, Route
from gateway.api.settings import PassThroughSettings
from gateway.api.timeout import REQUEST_TIMEOUT, read_timeout
from gateway.core.prompt import BYTES_PER_TOKEN, Prompt
from gateway.fleet.fleet import Fleet
from gateway.flow.admission import Permit
from gateway.framework import Clock
from gateway.proxy.memory import Share
from gateway.proxy.serving.call import Call, IncomingRequest
from gateway.proxy.serving.client import Sender
from gateway.proxy.serving.hooks import PromptSource
from gateway.proxy.serving.identify import client_of, identify, tokenized
from gateway.proxy.serving.model_directory import ModelDirectory
from gateway.proxy.serving.response_affinity import ResponseAffinity
from gateway.proxy.serving.timeline import USES_NOTHING, Event, Timeline
from gateway.proxy.settings import ListenSettings, TimeoutSettings
from gateway.tenants.gate import Gate


class Reception:
    """``chats``: all that it knows of past requests, with what long chats began. ``prompt_sources``: asked before our
    own tokenizer. ``gate``: of tenants' limits; None: nothing is configured for them."""

    # 10 parameters: three are settings of different rooms, of which it needs one or two values each
    def __init__(
        self,
        directory: ModelDirectory,
        fleet: Fleet,
        responses: ResponseAffinity,
        chats: KnownChats,
        prompt_sources: tuple[PromptSource, ...],
        listen: ListenSettings,
        timeouts: TimeoutSettings,
        passing: PassThroughSettings,
        gate: Gate | None,
        clock: Clock,
    ) -> None:
        self._directory = directory
        self._fleet = fleet
        self._responses = responses
        self._prompt_sources = prompt_sources
        self._max_body = listen.max_body
        self._patience = timeouts.receive
        self._passing = passing
        self._chats = chats
        self._gate = gate
        self._divided = gate is not None and gate.state.divided
        self._clock = clock

    async def read(
        self, client: Sender, route: Route, request_id: str, timeline: Timeline, share: Share
    ) -> tuple[Call, Permit]:
        """What the request of ``client`` is, and its permit, which is to be released. ``share``: for its body. Nothing
        else may keep the body: it is dropped when a stream begins, which may take an hour.

        Raises GatewayError, ClientGone.
        """
        raw = await client.receive(limit=self._max_body, timeout=self._patience, share=share)
        timeline.received_at = self._clock.monotonic()
        parsed = parse(route, raw, client.header("Content-Type"), self._passing, self._chats)
        headers = visible(client.headers)
        runtime, request = identify(
            parsed,
            self._directory,
            request_id=request_id,
            arrived=timeline.arrived,
            headers=headers,
            cookie=client.header("Cookie"),
            caller=client.caller,
        )
        pinned_url = ""
        if parsed.previous_response is not None:
            pinned_url = await self._responses.find(parsed.previous_response, self._fleet.endpoints(runtime.model))
            request.bound = True
        incoming = IncomingRequest(
            *(request_id, route, client.headers, parsed.body, runtime, request, parsed.n, pinned_url),
            read_timeout(headers) if REQUEST_TIMEOUT in headers else inf,
        )
        timeline.request = request
        runtime.demand.came(timeline.received_at)
        if self._gate is not None:
            estimate = 0 if route.multipart or b"base64" in raw else len(raw) // BYTES_PER_TOKEN
            anthropic = route.dialect is Dialect.ANTHROPIC
            if self._divided:
                await self._gate.room(client.caller, runtime.model.name)
            timeline.grant = self._gate.admit(client.caller, runtime.model.name, estimate, anthropic=anthropic)
        runtime.budget.deposit()
        permit = runtime.admission.try_acquire()
        if permit is None:
            timeline.happened(Event.QUEUED)
            began = self._clock.monotonic()
            permit = await runtime.admission.acquire()
            timeline.queue_wait = self._clock.monotonic() - began
        try:
            timeline.happened(Event.ADMITTED)
            asks = self._prompt_sources and runtime.tokens.may_ask_first
            prompt = await self._sourced(incoming, parsed) if asks else None
            if prompt is None:
                if client.stages.waiting:
                    await client.stages.wait_for_peers()
                prompt = await runtime.tokens.tokenize(
                    parsed.input,
                    client=lambda: client_of(incoming.headers, client.remote),
                    longest_context=lambda: self._directory.longest_context(runtime.model),
                )
            call = Call.of(incoming, prompt, tokenized(runtime, request, prompt))
            if timeline.grant is not None and request.kind not in USES_NOTHING:
                output = request.expected_output
                if self._divided:
                    await timeline.grant.room(request.prompt_tokens, output)
                timeline.grant.exact(request.prompt_tokens, output)
            timeline.happened(Event.TOKENIZED)
        except BaseException:
            permit.release()
            raise
        return call, permit

    async def body_of(self, client: Sender, share: Share) -> bytes:
        """As ``Sender.receive``, where more must be known before it is read."""
        return await client.receive(limit=self._max_body, timeout=self._patience, share=share)

    async def _sourced(self, incoming: IncomingRequest, parsed: Parsed) -> Prompt | None:
        for source in self._prompt_sources:
            prompt = await source.prompt(incoming, parsed)
            if prompt is not None:
                return incoming.runtime.tokens.from_engine(parsed.input, prompt)
        return None
