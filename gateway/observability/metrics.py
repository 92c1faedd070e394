"""The metrics' observer: counts what happens in ``Families``, and shows it in Prometheus' text format."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4

from gateway.core.observer import Observer, Settled
from gateway.core.queue_view import QueueView
from gateway.core.scaling_view import ScalingView
from gateway.core.source_view import SourceView
from gateway.framework import Clock
from gateway.observability.families import Families

# Requests that have ended, and are counted in one go: that takes a fraction of what each takes between the steps of
# others, whose code is not in the processor's cache. A tenth of a millisecond for so many.
_AT_ONCE = 64

# Names of dropped endpoints whose stragglers are ignored. An endpoint's last requests end within minutes of its drop,
# and a fleet does not lose a thousand in that time.
_MAX_DROPPED = 1024


class Metrics(Observer):
    """What is observed of a dropped endpoint is ignored, unless it comes back.

    What each request reports once waits until ``_AT_ONCE`` have ended, or it is shown.
    """

    def __init__(self, clock: Clock, version: str = "") -> None:
        self._families = Families(clock, version)
        self._ended: list[Settled] = []
        self._decided: list[tuple[str, str, float]] = []

    @property
    def families(self) -> Families:
        """With all counted that was observed."""
        if self._ended or self._decided:
            self._count()
        return self._families

    # requests
    def settled(self, request: Settled) -> None:
        self._ended.append(request)
        if len(self._ended) >= _AT_ONCE:
            self._count()

    def placed(self, model: str, reason: str, seconds: float) -> None:
        self._decided.append((model, reason, seconds))  # its request will be settled

    def attempted(self, model: str, endpoint: str, leg: str, result: str) -> None:
        if endpoint not in self._families.dropped:
            self._families.attempts[model, endpoint, leg, result] += 1

    def prefilled(self, model: str, seconds: float) -> None:
        self._families.prefill_leg[model,].observe(seconds)

    def handed_over(self, model: str, seconds: float) -> None:
        self._families.handover[model,].observe(seconds)

    def fell_back(self, model: str, cause: str) -> None:
        self._families.fallbacks[model, cause] += 1

    def limit_refused(self, tenant: str, limit: str) -> None:
        self._families.limits[tenant, limit] += 1

    def queued(self, model: str, length: int) -> None:
        self._families.queued[model,] = length

    def held(self, model: str, band: int, outcome: str, seconds: float) -> None:
        self._families.queue.held_wait[model, str(band), outcome].observe(seconds)

    def served(self, model: str, tenant: str, band: int, seconds: float) -> None:
        self._families.queue.served[model, tenant, str(band)] += seconds

    def shed(self, model: str, band: int, reason: str) -> None:
        self._families.queue.shed[model, str(band), reason] += 1

    def bus_dropped(self, reason: str) -> None:
        self._families.sharing.dropped[reason,] += 1

    def disconnected(self, model: str, phase: str) -> None:
        self._families.disconnects[model, phase] += 1

    # tokens
    def tokens_estimated(self, model: str, why: str) -> None:
        self._families.estimates[model, why] += 1

    def prompts_exact(self, model: str, share: float) -> None:
        self._families.exact[model,] = share

    def media_rendered(self, model: str, result: str) -> None:
        self._families.renders[model, result] += 1

    def prompt_asked(self, model: str, result: str) -> None:
        self._families.asked[model, result] += 1

    def ids_compared(self, model: str, equal: bool) -> None:
        self._families.ids[model,] += 1
        self._families.id_mismatches[model,] += not equal

    def parity(self, model: str, trusted: bool) -> None:
        self._families.trusted[model,] = trusted

    def endpoint_parity(self, model: str, endpoint: str, agrees: bool) -> None:
        if endpoint not in self._families.dropped:
            self._families.agreeing[model, endpoint] = agrees

    # plugins
    def plugin_failed(self, kind: str, name: str, error: BaseException) -> None:
        self._families.plugin_failures[kind, name] += 1

    def score_refused(self, name: str) -> None:
        self._families.scores_refused[name,] += 1

    def sibling_refused(self, reason: str) -> None:
        self._families.siblings_refused[reason,] += 1

    # fleet
    def engine_state(self, engine: str, up: bool, reason: str) -> None:
        self._families.engines[engine] = (up, reason)

    def engine_spared(self, engine: str, spared: bool) -> None:
        self._families.spared[engine,] = spared

    def scraped(self, engine: str, ok: bool, at: float) -> None:
        self._families.scrapes[engine, "ok" if ok else "failed"] += 1
        if ok:
            self._families.scraped[engine] = at

    def scrape_heard(self, engine: str, at: float) -> None:
        self._families.scraped[engine] = at

    def kv_transfers(self, endpoint: str, expired: float, fetching: Mapping[str, int]) -> None:
        self._families.expired[endpoint,] = expired
        self._families.fetching[endpoint] = fetching

    def cache_lookups(self, endpoint: str, cache: str, queried: float, hit: float) -> None:
        self._families.cache_queries[endpoint, cache] += queried
        self._families.cache_hits[endpoint, cache] += hit

    def draining(self, endpoint: str, draining: bool) -> None:
        self.families.dropped.pop(endpoint, None)  # only of endpoints that are there this is said: this one is back
        self._families.draining[endpoint,] = draining

    def engine_dropped(self, engine: str) -> None:
        self._families.engines.pop(engine, None)
        self._families.scraped.pop(engine, None)
        self._families.drop("engine", engine)

    def endpoint_dropped(self, endpoint: str) -> None:
        families = self.families
        families.dropped[endpoint] = None
        if len(families.dropped) > _MAX_DROPPED:
            del families.dropped[next(iter(families.dropped))]
        families.streams.pop(endpoint, None)
        families.fetching.pop(endpoint, None)
        families.drop("endpoint", endpoint)

    def model_dropped(self, model: str) -> None:
        self.families.drop("model", model)

    # KV cache
    def kv_events(self, endpoint: str, kind: str, count: int) -> None:
        if endpoint not in self._families.dropped:
            self._families.kv_events[endpoint, kind] += count

    def kv_gap(self, endpoint: str, result: str) -> None:
        if endpoint not in self._families.dropped:
            self._families.kv_gaps[endpoint, result] += 1

    def kv_stream(self, endpoint: str, state: str) -> None:
        if endpoint not in self._families.dropped:
            self._families.streams[endpoint] = state

    def kv_blocks(self, model: str, blocks: int) -> None:
        self._families.blocks[model,] = blocks

    def read_from(
        self,
        *,
        held: Callable[[], int],
        in_flight: Callable[[], Mapping[str, int]],
        budgets: Callable[[], Mapping[tuple[str, ...], float]] = dict,
        standing_by: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        """What is read when the metrics are shown. ``held``: the bytes that requests and answers hold. ``in_flight``:
        requests by endpoint. ``budgets``: the spent part of each tenant's. ``standing_by``: requests by model that wait
        for a usable endpoint."""
        self._families.standing_by = standing_by
        self._families.held, self._families.in_flight, self._families.budgets = held, in_flight, budgets

    def read_queues_from(self, queues: Callable[[], Iterable[QueueView]]) -> None:
        """What is read when the metrics are shown: a view of each model's queue."""
        self._families.queue.views = queues

    def read_scaling_from(self, views: Callable[[], Iterable[ScalingView]]) -> None:
        """What is read when the metrics are shown: a view of each model for autoscalers."""
        self._families.scaling.views = views

    def read_limits_from(self, modes: Callable[[], Mapping[tuple[str, ...], float]]) -> None:
        """``modes``: see ``SharingFamilies``."""
        self._families.sharing.limits = modes

    def read_replicas_from(
        self, *, peers: Callable[[], Mapping[str, int]], connected: Callable[[], bool | None]
    ) -> None:
        """What is read when the metrics are shown. ``peers``: other replicas by state. ``connected``: whether the
        server between them is there; None: there is none."""
        self._families.sharing.peers, self._families.sharing.connected = peers, connected

    def read_sources_from(self, sources: Callable[[], Sequence[SourceView]]) -> None:
        """``sources``: see ``DiscoveryFamilies``."""
        self._families.discovery.sources = sources

    def read_tenants_from(
        self,
        *,
        keys: Callable[[], int],
        header_tenants: Callable[[], int],
        source: Callable[[], Mapping[str, bool]],
    ) -> None:
        """What is read when the metrics are shown. ``keys``: of tenants. ``header_tenants``: as many as are known.
        ``source``: whether what keeps tenants and keys can be read, by its kind."""
        families = self._families
        families.keys, families.header_tenants, families.keys_source = keys, header_tenants, source

    # counting
    def _count(self) -> None:
        """Count what waits."""
        ended, self._ended = self._ended, []
        decided, self._decided = self._decided, []
        for request in ended:
            self._count_ended(request)
        families = self._families
        for model, reason, seconds in decided:
            families.plans[model, reason] += 1
            families.decision[model,].observe(seconds)

    def _count_ended(self, request: Settled) -> None:
        families, model = self._families, (request.model,)
        families.requests[request.model, request.outcome] += 1
        # A figure is of the requests that were sent to an engine, unless its row in docs/metrics.md says otherwise: a
        # request that was refused at once would make every quantile of the times below look better than it is.
        if request.endpoint is not None:
            families.queue_wait[model].observe(request.queue_wait)
            families.overhead[model].observe(request.overhead)
            families.prompt_tokens[model] += request.prompt_tokens
        if request.output_tokens is not None:
            families.output_tokens[model] += request.output_tokens
        if (charge := request.charge) is not None:
            tokens = families.tenant_tokens
            tokens[charge.tenant, "input"] += charge.input
            tokens[charge.tenant, "cached"] += charge.cached
            tokens[charge.tenant, "output"] += charge.output
        if request.slo is not None:
            families.goodput[request.model, request.slo] += 1
        if request.outcome == "ok":
            families.duration[model].observe(request.duration)
        if request.ttft is not None and request.stream:
            families.ttft[model].observe(request.ttft)
            if request.outcome == "ok" and request.output_tokens is not None and request.output_tokens > 1:
                families.per_token[model].observe((request.duration - request.ttft) / (request.output_tokens - 1))
        if request.counted is not None:
            families.counts[model] += 1
            families.mismatches[model] += request.counted != request.reported_prompt_tokens
        for hit in request.hits:
            series = request.model, hit.endpoint
            if hit.endpoint in families.dropped:
                continue
            if hit.prompt is not None:
                families.reported_prompts[series] += hit.prompt
                families.reported_hits[series] += hit.cached
            if hit.expected is not None:
                families.expected_hits[series] += hit.expected
                families.hit_error[series] += abs(hit.expected - hit.cached)

    # showing it
    async def render(self) -> tuple[bytes, str]:
        """The text format and its content type. Between two parts of it the loop runs.

        A thread would not do: it holds the GIL for 5 ms at a time, and every stream with it.
        """
        parts = []
        for part in self.families.text():
            parts.append(part)
            await asyncio.sleep(0)
        return b"".join(parts), CONTENT_TYPE_PLAIN_0_0_4
