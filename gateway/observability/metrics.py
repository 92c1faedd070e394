"""Prometheus metrics: ``kvgate_`` names, base units (seconds, tokens), bounded labels.

Every label value is a configured name or a word from the code, never a client's text.
What each series means and what to watch is in docs/metrics.md, which a test holds to this file.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from gateway.framework import Clock, Observer, Settled
from gateway.observability import buckets
from gateway.observability.instruments import Counts, Instruments, Spreads
from gateway.observability.present import Present

# Names of dropped endpoints whose stragglers are ignored. An endpoint's last requests end within minutes of its drop,
# and a fleet does not lose a thousand in that time.
_MAX_HIDDEN = 1024


class Metrics(Observer):
    """Counts what happens; ``render`` shows it. Safe to render in another thread than the one that counts."""

    def __init__(self, clock: Clock, version: str = "") -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self._present = Present(clock, version)
        self._instruments = Instruments()
        self.registry.register(self._present)
        self.registry.register(self._instruments)
        # Their names are the ecosystem's own: process_*, python_*.
        process, platform = ProcessCollector(registry=self.registry), PlatformCollector(registry=self.registry)
        self._others: list[Collector] = [self._present, process, platform, GCCollector(registry=self.registry)]

        self._requests = self._counter("requests", "Requests settled, by how they ended.", "model", "outcome")
        self._ttft = self._histogram(
            "time_to_first_token_seconds",
            "From a request's arrival to the first event that carries output.",
            buckets.TTFT,
            "model",
        )
        self._per_token = self._histogram(
            "time_per_output_token_seconds",
            "Mean time between the output tokens of one streamed answer, the first excluded.",
            buckets.TIME_PER_OUTPUT_TOKEN,
            "model",
        )
        self._goodput = self._counter(
            "goodput_requests", "Requests with objectives, by whether they met them.", "model", "result"
        )
        self._duration = self._histogram(
            "request_duration_seconds",
            "From arrival to the answer's end, of requests that ended well.",
            buckets.DURATION,
            "model",
        )
        self._queue_wait = self._histogram(
            "queue_wait_seconds", "Wait for admission, of requests that were admitted.", buckets.QUEUE_WAIT, "model"
        )
        self._decision = self._histogram(
            "decision_seconds", "Match, schedule and reserve, on the event loop.", buckets.DECISION, "model"
        )
        self._overhead = self._histogram(
            "overhead_seconds",
            "Our own time before the first byte went to an engine, queue wait excluded.",
            buckets.OVERHEAD,
            "model",
        )
        self._attempts = self._counter(
            "attempts", "Legs sent to an endpoint, by result.", "model", "endpoint", "leg", "result"
        )
        self._disconnects = self._counter("client_disconnects", "Clients that went away, by phase.", "model", "phase")

        self._plans = self._counter("plans", "Handlers' plans, by what they decided.", "model", "reason")
        self._prefill_leg = self._histogram(
            "prefill_leg_seconds",
            "Separate prefill legs that were answered, from sending to the answer's end.",
            buckets.PREFILL_LEG,
            "model",
        )
        self._handover = self._histogram(
            "handover_seconds",
            "Decode legs that fetched their KV, from sending to the first output (unstreamed: the whole answer).",
            buckets.HANDOVER,
            "model",
        )
        self._fallbacks = self._counter(
            "handover_fallbacks",
            "Requests whose prefill was to be another engine's, and that the decode engine computed itself.",
            "model",
            "cause",
        )

        self._prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of requests sent to an engine.", "model")
        self._output_tokens = self._counter("output_tokens", "Output tokens, where the answer tells them.", "model")
        self._estimates = self._counter(
            "prompts_estimated", "Prompts whose tokens were estimated from bytes.", "model", "reason"
        )
        self._renders = self._counter(
            "media_renders", "Chats with images of which an engine was to tell the tokens.", "model", "result"
        )
        self._asked = self._counter(
            "prompts_asked",
            "Prompts that cannot be tokenized here, of which an engine was to tell the tokens.",
            "model",
            "result",
        )
        self._counts = self._counter("token_counts_compared", "Exact counts compared with the engine's.", "model")
        self._mismatches = self._counter(
            "token_count_mismatches", "Exact counts that differed from the engine's.", "model"
        )
        self._ids = self._counter("token_ids_compared", "Prompts whose ids were compared with the engine's.", "model")
        self._id_mismatches = self._counter(
            "token_id_mismatches", "Prompts whose ids differed from the engine's.", "model"
        )
        self._expected = self._counter(
            "expected_hit_tokens",
            "Prompt tokens that we expected in the engine's cache, of answers that report theirs.",
            "model",
            "endpoint",
        )
        self._reported = self._counter(
            "reported_hit_tokens", "Prompt tokens that the engine says it took from its cache.", "model", "endpoint"
        )
        self._reporting = self._counter(
            "reported_prompt_tokens",
            "Prompt tokens, by the engine's count, of answers that report what came from its cache.",
            "model",
            "endpoint",
        )
        self._looked_up = self._counter(
            "engine_cache_query_tokens",
            "The engine's own count: prompt tokens that it looked for in a cache, since we watch it.",
            "endpoint",
            "cache",
        )
        self._found = self._counter(
            "engine_cache_hit_tokens",
            "The engine's own count: prompt tokens that it found in a cache, since we watch it.",
            "endpoint",
            "cache",
        )
        self._hit_error = self._counter(
            "hit_error_tokens", "Sum of |expected - reported| over requests.", "model", "endpoint"
        )

        self._plugin_failures = self._counter("plugin_failures", "Plugins that raised.", "kind", "plugin")
        self._scores_refused = self._counter("scores_refused", "Scores that were NaN or outside 0..1.", "plugin")
        self._scrapes = self._counter("scrapes", "Scrapes of engines' metrics.", "engine", "result")
        self._kv_events = self._counter(
            "kv_events", "KV cache events applied (blocks), or not understood.", "endpoint", "kind"
        )
        self._kv_gaps = self._counter("kv_gaps", "Gaps in a KV event stream.", "endpoint", "result")

    # requests
    def settled(self, request: Settled) -> None:
        model = (request.model,)
        self._requests[request.model, request.outcome] += 1
        # A request that was refused at once would make every quantile of the times below look better than it is.
        if request.endpoint is not None:
            self._queue_wait[model].observe(request.queue_wait)
            self._overhead[model].observe(request.overhead)
            self._prompt_tokens[model] += request.prompt_tokens
        if request.output_tokens is not None:
            self._output_tokens[model] += request.output_tokens
        if request.slo is not None:
            self._goodput[request.model, request.slo] += 1
        if request.outcome == "ok":
            self._duration[model].observe(request.duration)
        if request.ttft is not None and request.stream:
            self._ttft[model].observe(request.ttft)
            if request.outcome == "ok" and request.output_tokens is not None and request.output_tokens > 1:
                self._per_token[model].observe((request.duration - request.ttft) / (request.output_tokens - 1))

    def decided(self, model: str, seconds: float) -> None:
        self._decision[model,].observe(seconds)

    def attempted(self, model: str, endpoint: str, leg: str, result: str) -> None:
        if endpoint not in self._present.hidden:
            self._attempts[model, endpoint, leg, result] += 1

    def planned(self, model: str, reason: str) -> None:
        self._plans[model, reason] += 1

    def prefilled(self, model: str, seconds: float) -> None:
        self._prefill_leg[model,].observe(seconds)

    def handed_over(self, model: str, seconds: float) -> None:
        self._handover[model,].observe(seconds)

    def fell_back(self, model: str, cause: str) -> None:
        self._fallbacks[model, cause] += 1

    def in_flight(self, endpoint: str, change: int) -> None:
        present = self._present
        count = max(0, present.in_flight.get(endpoint, 0) + change)
        if change > 0:
            present.hidden.pop(endpoint, None)
        elif count == 0 and endpoint in present.hidden:
            present.in_flight.pop(endpoint, None)
            return
        present.in_flight[endpoint] = count

    def queued(self, model: str, length: int) -> None:
        self._present.queued[model] = length

    def disconnected(self, model: str, phase: str) -> None:
        self._disconnects[model, phase] += 1

    # tokens
    def tokens_estimated(self, model: str, why: str) -> None:
        self._estimates[model, why] += 1

    def prompts_exact(self, model: str, share: float) -> None:
        self._present.exact[model] = share

    def media_rendered(self, model: str, result: str) -> None:
        self._renders[model, result] += 1

    def prompt_asked(self, model: str, result: str) -> None:
        self._asked[model, result] += 1

    def tokens_compared(self, model: str, ours: int, reported: int) -> None:
        self._counts[model,] += 1
        self._mismatches[model,] += ours != reported

    def ids_compared(self, model: str, equal: bool) -> None:
        self._ids[model,] += 1
        self._id_mismatches[model,] += not equal

    def parity(self, model: str, trusted: bool) -> None:
        self._present.trusted[model] = trusted

    def endpoint_parity(self, model: str, endpoint: str, agrees: bool) -> None:
        if endpoint not in self._present.hidden:
            self._present.agreeing[model, endpoint] = agrees

    def hits_compared(self, model: str, endpoint: str, expected: int, reported: int) -> None:
        if endpoint not in self._present.hidden:
            self._expected[model, endpoint] += expected
            self._hit_error[model, endpoint] += abs(expected - reported)

    def hits_reported(self, model: str, endpoint: str, prompt: int, cached: int) -> None:
        if endpoint not in self._present.hidden:
            self._reporting[model, endpoint] += prompt
            self._reported[model, endpoint] += cached

    # plugins
    def plugin_failed(self, kind: str, name: str, error: BaseException) -> None:
        self._plugin_failures[kind, name] += 1

    def score_refused(self, name: str) -> None:
        self._scores_refused[name,] += 1

    # fleet
    def engine_state(self, engine: str, up: bool, reason: str) -> None:
        self._present.engines[engine] = (up, reason)

    def engine_spared(self, engine: str, spared: bool) -> None:
        self._present.spared[engine] = spared

    def scraped(self, engine: str, ok: bool, at: float) -> None:
        self._scrapes[engine, "ok" if ok else "failed"] += 1
        if ok:
            self._present.scraped[engine] = at

    def kv_transfers(self, endpoint: str, expired: float, fetching: Mapping[str, int]) -> None:
        present = self._present
        present.hidden.pop(endpoint, None)  # only endpoints that are there are scraped: this one is back
        present.expired[endpoint] = expired
        present.fetching[endpoint] = fetching

    def cache_lookups(self, endpoint: str, cache: str, queried: float, hit: float) -> None:
        self._present.hidden.pop(endpoint, None)  # only endpoints that are there are scraped: this one is back
        self._looked_up[endpoint, cache] += queried
        self._found[endpoint, cache] += hit

    def draining(self, endpoint: str, draining: bool) -> None:
        self._present.draining[endpoint] = draining

    def engine_dropped(self, engine: str) -> None:
        self._present.engines.pop(engine, None)
        self._present.spared.pop(engine, None)
        self._present.scraped.pop(engine, None)
        self._scrapes.drop("engine", engine)

    def endpoint_dropped(self, endpoint: str) -> None:
        """Its series go now; what its last requests still say is ignored, unless it comes back."""
        present = self._present
        present.hidden[endpoint] = None
        if len(present.hidden) > _MAX_HIDDEN:
            del present.hidden[next(iter(present.hidden))]
        if not present.in_flight.get(endpoint):
            present.in_flight.pop(endpoint, None)
        for known in (present.streams, present.expired, present.fetching, present.draining):
            known.pop(endpoint, None)
        present.agreeing = {pair: agrees for pair, agrees in present.agreeing.items() if pair[1] != endpoint}
        for family in (
            self._attempts,
            self._expected,
            self._reported,
            self._reporting,
            self._looked_up,
            self._found,
            self._hit_error,
            self._kv_events,
            self._kv_gaps,
        ):
            family.drop("endpoint", endpoint)

    def model_dropped(self, model: str) -> None:
        present = self._present
        for known in (present.queued, present.blocks, present.trusted, present.exact):
            known.pop(model, None)
        present.agreeing = {pair: agrees for pair, agrees in present.agreeing.items() if pair[0] != model}
        for family in self._instruments.families:
            if "model" in family.labels:
                family.drop("model", model)

    # KV cache
    def kv_events(self, endpoint: str, kind: str, count: int) -> None:
        if endpoint not in self._present.hidden:
            self._kv_events[endpoint, kind] += count

    def kv_gap(self, endpoint: str, result: str) -> None:
        if endpoint not in self._present.hidden:
            self._kv_gaps[endpoint, result] += 1

    def kv_stream(self, endpoint: str, state: str) -> None:
        if state != "off":  # a stream that starts: its endpoint is back; one that ends may be a dropped endpoint's last
            self._present.hidden.pop(endpoint, None)
        if endpoint not in self._present.hidden:
            self._present.streams[endpoint] = state

    def kv_blocks(self, model: str, blocks: int) -> None:
        self._present.blocks[model] = blocks

    def watch_held(self, held: Callable[[], int]) -> None:
        """``held``: tells how many bytes of requests and answers are, when it is asked."""
        self._present.held = held

    # showing it
    def render(self) -> tuple[bytes, str]:
        """The text format and its content type, at once: 10 to 20 ms for 100 endpoints and 10 models. On a loop that
        serves, use ``render_in_slices``."""
        return b"".join(self._parts()), CONTENT_TYPE_PLAIN_0_0_4

    async def render_in_slices(self) -> tuple[bytes, str]:
        """As ``render``, part by part: between two of them (at most 1 to 2 ms each for 100 endpoints) the loop runs.

        A thread would not do: it holds the GIL for 5 ms at a time, and every stream with it.
        """
        parts = []
        for part in self._parts():
            parts.append(part)
            await asyncio.sleep(0)
        return b"".join(parts), CONTENT_TYPE_PLAIN_0_0_4

    def _parts(self) -> Iterator[bytes]:
        for collector in self._others:
            for family in collector.collect():
                yield generate_latest(_Single(family))
        for ours in self._instruments.families:
            yield from ours.text()

    def _counter(self, name: str, documentation: str, *labels: str) -> Counts:
        counts = Counts(f"kvgate_{name}", documentation, *labels)
        self._instruments.families.append(counts)
        return counts

    def _histogram(self, name: str, documentation: str, bounds: Sequence[float], *labels: str) -> Spreads:
        spreads = Spreads(f"kvgate_{name}", documentation, bounds, *labels)
        self._instruments.families.append(spreads)
        return spreads


class _Single(Collector):
    """One family where the client library's renderer wants a registry."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterator[Metric]:
        yield self._family
