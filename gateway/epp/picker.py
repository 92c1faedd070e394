"""Takes a request to its destination: received, admitted, tokenized and placed as the proxy's are, and carried by the
gateway that asks. It stays booked until that tells its end, or until its end is predicted (``HeardAnswer``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gateway.api.routes import Route
from gateway.core.observer import Observer
from gateway.epp.answer import HeardAnswer
from gateway.epp.client import BodyMode, CallClient
from gateway.epp.destination import Addresses
from gateway.epp.guess import guess_route
from gateway.epp.settings import PickerSettings
from gateway.errors import NO_ENDPOINT_RETRY, NoEndpoint
from gateway.fleet.fleet import Fleet
from gateway.flow.admission import Permit
from gateway.framework import Clock, Endpoint, Plan, Role
from gateway.framework.request import DECODE, PREFILL
from gateway.kvcache.events.poller import Poller
from gateway.proxy.memory import Memory, Share
from gateway.proxy.serving.attempt import Attempt
from gateway.proxy.serving.call import Call
from gateway.proxy.serving.forward import Forwarder
from gateway.proxy.serving.front import Front
from gateway.proxy.serving.hooks import AfterSettle
from gateway.proxy.serving.model_directory import ModelDirectory
from gateway.proxy.serving.placer import Placer
from gateway.proxy.serving.queueing import ModelQueue
from gateway.proxy.serving.reception import Reception
from gateway.proxy.serving.response_affinity import ResponseAffinity, may_be_kept
from gateway.proxy.serving.timeline import Event, Timeline
from gateway.proxy.settings import RetrySettings
from gateway.proxy.upstream.legs import LegFailed, Retries
from gateway.scheduling.trace import Trace

BODIES = frozenset({BodyMode.STREAMED, BodyMode.BUFFERED, BodyMode.FULL})

PREFILLER = "x-prefiller-host-port"
"""The header by which llm-d's sidecar learns which engine computes the prompt."""

PASSED = "passed"
"""The outcome of a request that a proxy of kvgate takes over, and counts."""

OUTSIDE = "None of the endpoints to which the gateway restricts the request can serve it."


class Picker(Front[CallClient]):
    """One for each configuration, as ``Director``. ``splits``: plans what may go to a proxy of kvgate, which splits it;
    None: there is none."""

    def __init__(  # 15 parameters: each is a room that the way of a request crosses, and belongs to no other
        self,
        reception: Reception,
        placer: Placer,
        splits: Placer | None,
        forwarder: Forwarder,
        directory: ModelDirectory,
        fleet: Fleet,
        responses: ResponseAffinity,
        addresses: Addresses,
        queues: Mapping[str, ModelQueue],
        *,
        settings: PickerSettings,
        retries: RetrySettings,
        poller: Poller,
        memory: Memory,
        clock: Clock,
        observer: Observer,
    ) -> None:
        super().__init__(reception, placer, queues, poller=poller, memory=memory, clock=clock, observer=observer)
        self._splits = splits
        self._forwarder = forwarder
        self._directory = directory
        self._fleet = fleet
        self._responses = responses
        self._addresses = addresses
        self._settings = settings
        self._retries = retries

    @property
    def hears(self) -> str:
        return self._settings.hears

    async def pass_on(self, client: CallClient, request_id: str) -> None:
        """A request without a body may go to any endpoint that is ready: it is not placed, and nothing is booked.
        Raises NoEndpoint."""
        ready = [
            endpoint
            for runtime in self._directory.runtimes
            for endpoint in self._directory.candidates(runtime.model, None)
            if endpoint.engine.up and endpoint.role != Role.PREFILL
        ]
        outside = await self._outside(client, ready)
        allowed = [endpoint for endpoint in ready if endpoint.slot not in outside]
        if not allowed:
            raise NoEndpoint("No endpoint is ready.", retry_after=NO_ENDPOINT_RETRY)
        chosen = min(allowed, key=lambda endpoint: endpoint.load.requests)
        leg = self._forwarder.bare(client.headers, chosen, client.path, request_id)
        client.routed(await self._addresses.of(chosen), leg, None)

    async def guess(self, client: CallClient) -> Route:
        """What is asked by a client whose gateway does not say its path. Raises GatewayError."""
        share = Share(self._memory)
        try:
            body = await self._reception.body_of(client, share)
        finally:
            share.release()
        return guess_route(body, client.fields)

    async def _answer(
        self, call: Call, permit: Permit, client: CallClient, timeline: Timeline, share: Share
    ) -> Sequence[AfterSettle]:
        try:
            members = self._fleet.endpoints(call.runtime.model)
            outside = await self._outside(client, members)
            if outside and len(outside) == len(members):
                raise NoEndpoint(OUTSIDE, retry_after=NO_ENDPOINT_RETRY)
            retries = Retries(self._retries, call.runtime.budget, failed_on=outside)
            if self._splits is not None and await self._passes(call, client, timeline, retries):
                return ()
            attempt = await self._first_attempt(call, client, timeline, retries, share)
            del call
            with HeardAnswer(self, attempt, share) as answer:
                del attempt
                if client.stages.waiting:
                    await client.stages.wait_for_peers()
                await self._route(answer, client)
                share.release()
                await answer.done
            return ()
        finally:
            permit.release()

    async def _passes(self, call: Call, client: CallClient, timeline: Timeline, retries: Retries) -> bool:
        """Send it on to a proxy of kvgate as it came, if it should be split between two engines. It is placed, booked
        and counted there."""
        assert self._splits is not None
        assert self._settings.split is not None
        await self._poller.catch_up()
        try:
            plan = self._splits.decide(call, timeline, retries, Trace(self._splits.rosters))
        except NoEndpoint:  # it may stand by for one
            return False
        if len(plan.legs) == 1:
            return False
        timeline.outcome = PASSED
        client.routed(self._settings.split, None, None)
        return True

    async def _route(self, answer: HeardAnswer, client: CallClient) -> None:
        """Tell the gateway where the request goes, and as what. Raises NoEndpoint."""
        attempt = answer.attempt
        call, endpoint = attempt.call, attempt.plan.decode
        announced, cleanable = self._bodies(client)
        body, asks = await self._forwarder.prepared(attempt, endpoint, call.body, DECODE, ask=cleanable)
        leg = self._forwarder.leg(call, endpoint, asks or body, readable=announced)
        destination = await self._addresses.of(endpoint)
        prefill = attempt.plan.prefill
        if prefill is not None:
            leg.headers.append((PREFILLER, await self._addresses.of(prefill)))
        if endpoint.slot in await self._outside(client, [endpoint]):  # it has come meanwhile
            raise NoEndpoint(OUTSIDE, retry_after=NO_ENDPOINT_RETRY)
        if self._settings.fallbacks:
            destination = ",".join([destination, *await self._others(attempt)])
        if asks is not None:
            answer.remover = self._forwarder.usage_remover(attempt, endpoint)
        if prefill is not None:
            attempt.sent(PREFILL, prefill)
        attempt.sent(DECODE, endpoint)
        if prefill is not None and not (announced and call.request.stream):
            answer.presume_prefill()
        if call.request.stream and not announced:
            attempt.placement.decode.unreported()
        answer.reads, answer.keeps = announced, announced and may_be_kept(call)
        attempt.forget_prompt()
        client.routed(destination, leg, answer)

    def _bodies(self, client: CallClient) -> tuple[bool, bool]:
        """Whether the answer's body will be told and used; and whether it can be changed on its way."""
        hears = self._settings.hears
        if hears in ("ends", "request") or client.ends:
            return False, False
        if client.modes is None:
            return hears == "full", hears == "full"
        return client.modes[1] in BODIES, client.modes[1] == BodyMode.FULL

    async def _outside(self, client: CallClient, endpoints: Sequence[Endpoint]) -> set[int]:
        """Slots of those to which the gateway does not allow this request."""
        if client.subset is None or not self._settings.subset:
            return set()
        return await self._addresses.outside(client.subset, endpoints)

    async def _others(self, attempt: Attempt) -> list[str]:
        """Addresses of the next best endpoints, which a gateway may try after the first."""
        call, timeline, matches = attempt.call, attempt.timeline, attempt.call.request.matches
        failed_on = {*attempt.retries.failed_on, attempt.plan.decode.slot}
        found: list[str] = []
        try:
            while len(found) < self._settings.fallbacks:
                retries = Retries(self._retries, call.runtime.budget, failed_on=failed_on)
                endpoint = self._placer.decide(call, timeline, retries, Trace(self._placer.rosters)).decode
                failed_on.add(endpoint.slot)
                found.append(await self._addresses.of(endpoint))
        except NoEndpoint:
            pass
        finally:
            call.request.matches = matches
        return found

    # What an answer reports: ``answer.Carried``

    def began(self, endpoint: Endpoint) -> None:
        self._fleet.report_head(endpoint)

    def finished(self, endpoint: Endpoint) -> None:
        self._fleet.report_complete(endpoint)

    def failed(self, failure: LegFailed) -> None:
        self._forwarder.failed(failure)

    def kept(self, response: str, endpoint: Endpoint) -> None:
        self._responses.note(response, endpoint)

    def usage_refused(self, endpoint: Endpoint) -> None:
        self._forwarder.usage_refused(endpoint, "refuses stream_options.include_usage")

    def moved(self, attempt: Attempt, served: str) -> Attempt:
        call, timeline, first = attempt.call, attempt.timeline, attempt.plan.decode
        if self._addresses.known(first) == served:
            return attempt
        members = self._fleet.endpoints(call.runtime.model)
        endpoint = next((one for one in members if self._addresses.known(one) == served), None)
        if endpoint is None:
            return attempt
        self._fleet.report_doubt(first)  # no more: the gateway may have its own reasons
        timeline.happened(Event.ATTEMPT_FAILED)
        attempt.end("moved")
        request, index, now = call.request, call.runtime.index, self._clock.monotonic()
        request.matches = index.match(call.keys, request.prompt_tokens, [endpoint])
        plan, trace = Plan.of(endpoint, reason="served"), Trace(self._placer.rosters)
        again = self._placer.book(call, plan, timeline, attempt.retries, trace, now, attempt)
        if timeline.queued is not None:
            timeline.queued.placed_again(plan, call.keys)
        again.sent(DECODE, endpoint)
        return again
