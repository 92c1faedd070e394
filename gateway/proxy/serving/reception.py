"""The first verbs of a request: receive, parse, admit, tokenize. They end with a ``Call``, which can be placed."""

from __future__ import annotations

from gateway.api.headers import visible
from gateway.api.parse import Parsed, parse
from gateway.api.settings import PassSettings
from gateway.core.prompt import Prompt
from gateway.fleet.fleet import Fleet
from gateway.framework import Clock
from gateway.proxy.serving.call import Call, IncomingRequest
from gateway.proxy.serving.client import Client
from gateway.proxy.serving.exchange import Exchange
from gateway.proxy.serving.hooks import PromptSource
from gateway.proxy.serving.identify import client_of, identify, tokenized
from gateway.proxy.serving.model_directory import ModelDirectory
from gateway.proxy.serving.response_affinity import ResponseAffinity
from gateway.proxy.serving.timeline import Event
from gateway.proxy.settings import ListenSettings, TimeoutSettings


class Reception:
    """Holds no state of any request. ``prompt_sources``: asked before our own tokenizer."""

    def __init__(
        self,
        directory: ModelDirectory,
        fleet: Fleet,
        responses: ResponseAffinity,
        prompt_sources: tuple[PromptSource, ...],
        listen: ListenSettings,
        timeouts: TimeoutSettings,
        passing: PassSettings,
        clock: Clock,
    ) -> None:
        self._directory = directory
        self._fleet = fleet
        self._responses = responses
        self._prompt_sources = prompt_sources
        self._max_body = listen.max_body
        self._patience = timeouts.receive
        self._passing = passing
        self._clock = clock

    async def read(self, exchange: Exchange, client: Client) -> None:
        """Fill in ``exchange``, up to its ``call``. Nothing else may keep the body: it is dropped when a stream begins,
        which may take an hour. Raises GatewayError, ClientGone."""
        timeline = exchange.timeline
        raw = await client.receive(limit=self._max_body, timeout=self._patience, share=exchange.share)
        timeline.received_at = self._clock.monotonic()
        parsed = parse(exchange.route, raw, client.header("Content-Type"), self._passing)
        runtime, request = identify(
            parsed,
            self._directory,
            request_id=exchange.id,
            arrived=timeline.arrived,
            headers=visible(client.headers),
            cookie=client.header("Cookie"),
        )
        pinned_url = ""
        if parsed.previous_response is not None:
            pinned_url = self._responses.engine_of(parsed.previous_response, self._fleet.endpoints(runtime.model))
            request.bound = True
        exchange.incoming = incoming = IncomingRequest(
            exchange.id, exchange.route, client.headers, parsed.body, runtime, request, parsed.n, pinned_url
        )
        exchange.model_name = runtime.model.name
        runtime.budget.deposit()
        exchange.permit = runtime.admission.try_acquire()
        if exchange.permit is None:
            timeline.happened(Event.QUEUED)
            began = self._clock.monotonic()
            exchange.permit = await runtime.admission.acquire()
            timeline.queue_wait = self._clock.monotonic() - began
        timeline.happened(Event.ADMITTED)
        asks = self._prompt_sources and runtime.tokens.may_ask_first
        prompt = await self._sourced(incoming, parsed) if asks else None
        if prompt is None:
            prompt = await runtime.tokens.tokenize(
                parsed.input,
                client=lambda: client_of(incoming.headers, client.remote),
                room=lambda: self._directory.room(runtime.model),
            )
        exchange.incoming = exchange.call = Call.of(incoming, prompt, tokenized(runtime, incoming.request, prompt))
        timeline.happened(Event.TOKENIZED)

    async def _sourced(self, incoming: IncomingRequest, parsed: Parsed) -> Prompt | None:
        for source in self._prompt_sources:
            prompt = await source.prompt(incoming, parsed)
            if prompt is not None:
                return incoming.runtime.tokens.from_engine(parsed.input, prompt)
        return None
