"""Every series that the gateway exposes, and the text of all of them.

Names begin with ``kvgate_``, but those that llm-d's users know; units are base units (seconds, bytes, tokens). A
label's value is a configured name or a word from the code, never a client's text. docs/metrics.md says what each series
means; a test holds it to this file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from gateway.framework import Clock
from gateway.observability import buckets
from gateway.observability.discovery_families import DiscoveryFamilies
from gateway.observability.instruments import Counter, Family, Gauge, Histogram, Labels, Over
from gateway.observability.queue_families import QueueFamilies
from gateway.observability.scaling_families import ScalingFamilies
from gateway.observability.sharing_families import SharingFamilies


class Families:
    """The instruments, in the order in which they are shown, and what gauges are read from when they are shown.

    ``dropped``: endpoints of which nothing is shown. ``engines``: (healthy, why not). ``scraped``: Clock.monotonic() of
    the last good scrape by engine. ``streams``: state by endpoint. ``fetching``: by endpoint, its waiting requests by
    the stage of fetching their KV; these mappings are replaced, never changed. ``held``: gives the bytes that requests
    and answers hold. ``in_flight``: gives the requests by endpoint. ``budgets``: gives the spent part of each tenant's
    budget. ``keys``: gives the number of tenants' keys; ``header_tenants``: of tenants that only a header names;
    ``keys_source``: whether what keeps them can be read, by its kind. ``standing_by``: gives the requests by model that
    wait for a usable endpoint.

    A state is shown as one series with the value 1, and never beside a former one: that is why states are read.
    """

    def __init__(self, clock: Clock, version: str) -> None:
        self._clock = clock
        self._gauges: list[Gauge] = []
        self._counted: list[Counter | Histogram] = []
        # These names are the ecosystem's own: process_*, python_*.
        self._library = CollectorRegistry(auto_describe=False)
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self._library)
        self.dropped: dict[str, None] = {}
        self.engines: dict[str, tuple[bool, str]] = {}
        self.scraped: dict[str, float] = {}
        self.streams: dict[str, str] = {}
        self.fetching: dict[str, Mapping[str, int]] = {}
        self.held: Callable[[], int] = lambda: 0
        self.budgets: Callable[[], Mapping[Labels, float]] = dict
        self.keys: Callable[[], int] = lambda: 0
        self.header_tenants: Callable[[], int] = lambda: 0
        self.keys_source: Callable[[], Mapping[str, bool]] = dict
        self.in_flight: Callable[[], Mapping[str, int]] = dict
        self.standing_by: Callable[[], Mapping[str, int]] = dict
        self._make_gauges(version)
        self.queue = QueueFamilies(self._gauge, self._counter, self._histogram)
        self.sharing = SharingFamilies(self._gauge, self._counter)
        self.discovery = DiscoveryFamilies(self._gauge)
        self.scaling = ScalingFamilies(self._gauge, self._named)
        self._make_request_families()
        self._make_token_families()
        self._make_tenant_families()
        self._make_fleet_families()

    @property
    def all(self) -> Sequence[Family[float] | Histogram]:
        return [*self._gauges, *self._counted]

    def drop(self, label: str, value: str) -> None:
        """Remove all series with this value of this label."""
        for family in self.all:
            family.drop(label, value)

    def text(self) -> Iterator[bytes]:
        """The text format, in parts: at most 1 to 2 ms each for 100 endpoints."""
        for gauge in self._gauges:
            yield from gauge.text()
        yield generate_latest(self._library)
        for counted in self._counted:
            yield from counted.text()

    def _make_gauges(self, version: str) -> None:
        gauge = self._gauge
        gauge("build_info", "Always 1.", "version")[version,] = 1
        self.worker_up = gauge("worker_up", "1 while a worker accepts connections.", "worker")
        gauge(
            "held_bytes",
            "Bytes of requests' bodies and of unstreamed answers that are held, of those that listen.max_held allows.",
            read=lambda: {(): self.held()},
            over="sum",
        )
        gauge(
            "in_flight_requests",
            "Requests placed on an endpoint and not yet settled.",
            "endpoint",
            read=lambda: {(name,): count for name, count in self.in_flight().items()},
            over="sum",
        )
        self.queued = gauge("queued_requests", "Requests that wait for admission.", "model", over="sum")
        gauge(
            "standing_by_requests",
            "Requests that wait for their model to have a usable endpoint.",
            "model",
            read=lambda: {(model,): count for model, count in self.standing_by().items()},
            over="sum",
        )
        gauge(
            "engine_up",
            "1 while the engine answers its probes.",
            "engine",
            read=lambda: {(name,): up for name, (up, _) in self.engines.copy().items()},
            over="lead",
        )
        gauge(
            "engine_down_reason",
            "1 for the reason why an engine is down; no series while it is up.",
            "engine",
            "reason",
            read=lambda: {(name, reason): 1 for name, (up, reason) in self.engines.copy().items() if not up},
            over="lead",
        )
        self.spared = gauge(
            "engine_spared",
            "1 while an engine is used although it is down, since more than half of a model's endpoints would be out.",
            "engine",
        )
        self.draining = gauge(
            "endpoint_draining",
            "1 while an endpoint gets no new requests, by the configuration or an operator; it is in order.",
            "endpoint",
        )
        gauge(
            "scrape_age_seconds",
            "Age of what we know of an engine's own metrics: since its last good scrape.",
            "engine",
            read=self._scrape_ages,
            over="lead",
        )
        gauge(
            "kv_stream_state",
            "1 for the state of an endpoint's KV event stream: off, connecting, live or partial.",
            "endpoint",
            "state",
            read=lambda: dict.fromkeys(self.streams.copy().items(), 1),
        )
        self.blocks = gauge("kv_index_blocks", "Block keys in a model's cache index.", "model")
        self.trusted = gauge(
            "token_parity",
            "1 while our token ids agree with the engines'; 0: they do not, and prompts are estimated.",
            "model",
            over="min",
        )
        self.exact = gauge(
            "prompts_exact_ratio",
            "Of a model's last 1,000 prompts, the share whose token ids are the engines', to the last one.",
            "model",
            over="min",
        )
        self.agreeing = gauge(
            "endpoint_token_parity",
            "0 while an endpoint's engine makes other tokens than we do, and what it holds is estimated; 1: again not.",
            "model",
            "endpoint",
            over="min",
        )
        self.expired = gauge(
            "engine_kv_expired_requests",
            "The engine's own count, since its start: requests whose KV it computed for another, and nobody fetched.",
            "endpoint",
            over="lead",
        )
        gauge(
            "engine_kv_fetching_requests",
            "Requests that wait in the engine, by the stage of fetching their KV from another engine.",
            "endpoint",
            "stage",
            read=lambda: {(name, stage): n for name, at in self.fetching.copy().items() for stage, n in at.items()},
            over="lead",
        )
        gauge(
            "budget_spent_ratio",
            "What a tenant has spent of its budget in the present period, by the budget's amount.",
            "tenant",
            read=lambda: self.budgets(),
        )
        gauge("tenant_keys", "API keys of tenants, those that have expired included.", read=lambda: {(): self.keys()})
        gauge(
            "header_tenants",
            "Tenants that only a trusted header names, as many as are known now.",
            read=lambda: {(): self.header_tenants()},
        )
        gauge(
            "keys_source_up",
            "1 while what keeps tenants and keys can be read; 0: what was last known is in force.",
            "source",
            read=lambda: {(kind,): up for kind, up in self.keys_source().items()},
            over="min",
        )

    def _make_request_families(self) -> None:
        counter, histogram = self._counter, self._histogram
        self.requests = counter("requests", "Requests settled, by how they ended.", "model", "outcome")
        self.ttft = histogram(
            "time_to_first_token_seconds",
            "From a request's arrival to the first event that carries output.",
            buckets.TTFT,
            "model",
        )
        self.per_token = histogram(
            "time_per_output_token_seconds",
            "Mean time between the output tokens of one streamed answer, the first excluded.",
            buckets.TIME_PER_OUTPUT_TOKEN,
            "model",
        )
        self.goodput = counter(
            "goodput_requests", "Requests with objectives, by whether they met them.", "model", "result"
        )
        self.duration = histogram(
            "request_duration_seconds",
            "From arrival to the answer's end, of requests that ended well.",
            buckets.DURATION,
            "model",
        )
        self.queue_wait = histogram(
            "queue_wait_seconds", "Wait for admission, of requests that were admitted.", buckets.QUEUE_WAIT, "model"
        )
        self.decision = histogram(
            "decision_seconds", "Match, schedule and reserve, on the event loop.", buckets.DECISION, "model"
        )
        self.overhead = histogram(
            "overhead_seconds",
            "Our own time before the first byte went to an engine, queue wait excluded.",
            buckets.OVERHEAD,
            "model",
        )
        self.attempts = counter(
            "attempts", "Legs sent to an endpoint, by result.", "model", "endpoint", "leg", "result"
        )
        self.disconnects = counter("client_disconnects", "Clients that went away, by phase.", "model", "phase")
        self.plans = counter("plans", "Handlers' plans, by what they decided.", "model", "reason")
        self.prefill_leg = histogram(
            "prefill_leg_seconds",
            "Separate prefill legs that were answered, from sending to the answer's end.",
            buckets.PREFILL_LEG,
            "model",
        )
        self.handover = histogram(
            "handover_seconds",
            "Decode legs that fetched their KV, from sending to the first output (unstreamed: the whole answer).",
            buckets.HANDOVER,
            "model",
        )
        self.fallbacks = counter(
            "handover_fallbacks",
            "Requests whose prefill was to be another engine's, and that the decode engine computed itself.",
            "model",
            "cause",
        )

    def _make_token_families(self) -> None:
        counter = self._counter
        self.prompt_tokens = counter("prompt_tokens", "Prompt tokens of requests sent to an engine.", "model")
        self.output_tokens = counter("output_tokens", "Output tokens, if the answer reports them.", "model")
        self.estimates = counter(
            "prompts_estimated", "Prompts whose tokens were estimated from bytes.", "model", "reason"
        )
        self.renders = counter(
            "media_renders", "Chats with images whose tokens were requested from an engine.", "model", "result"
        )
        self.asked = counter(
            "prompts_asked",
            "Prompts that cannot be tokenized here, whose tokens were requested from an engine.",
            "model",
            "result",
        )
        self.counts = counter("token_counts_compared", "Exact counts compared with the engine's.", "model")
        self.mismatches = counter("token_count_mismatches", "Exact counts that differed from the engine's.", "model")
        self.ids = counter("token_ids_compared", "Prompts whose ids were compared with the engine's.", "model")
        self.id_mismatches = counter("token_id_mismatches", "Prompts whose ids differed from the engine's.", "model")
        self.expected_hits = counter(
            "expected_hit_tokens",
            "Prompt tokens that we expected in the engine's cache, of answers that report theirs.",
            "model",
            "endpoint",
        )
        self.reported_hits = counter(
            "reported_hit_tokens", "Prompt tokens that the engine says it took from its cache.", "model", "endpoint"
        )
        self.reported_prompts = counter(
            "reported_prompt_tokens",
            "Prompt tokens, by the engine's count, of answers that report what came from its cache.",
            "model",
            "endpoint",
        )
        self.cache_queries = counter(
            "engine_cache_query_tokens",
            "The engine's own count: prompt tokens that it looked for in a cache, since we watch it.",
            "endpoint",
            "cache",
        )
        self.cache_hits = counter(
            "engine_cache_hit_tokens",
            "The engine's own count: prompt tokens that it found in a cache, since we watch it.",
            "endpoint",
            "cache",
        )
        self.hit_error = counter("hit_error_tokens", "Sum of |expected - reported| over requests.", "model", "endpoint")

    def _make_tenant_families(self) -> None:
        self.tenant_tokens = self._counter(
            "tenant_tokens", "Tokens that tenants were charged, by kind.", "tenant", "kind"
        )
        self.limits = self._counter(
            "limit_refused", "Requests refused by a limit or budget of their tenant or key.", "tenant", "limit"
        )

    def _make_fleet_families(self) -> None:
        counter = self._counter
        self.worker_restarts = counter("worker_restarts", "Workers that were started for one that had ended.", "worker")
        self.plugin_failures = counter("plugin_failures", "Plugins that raised.", "kind", "plugin")
        self.scores_refused = counter("scores_refused", "Scores that were NaN or outside 0..1.", "plugin")
        self.siblings_refused = counter(
            "sibling_messages_refused", "Messages of other workers that cannot be used.", "reason"
        )
        self.scrapes = counter("scrapes", "Scrapes of engines' metrics.", "engine", "result")
        self.kv_events = counter(
            "kv_events", "KV cache events applied (blocks), or not understood.", "endpoint", "kind", over="once"
        )
        self.kv_gaps = counter("kv_gaps", "Gaps in a KV event stream.", "endpoint", "result")

    def _scrape_ages(self) -> dict[Labels, float]:
        now = self._clock.monotonic()
        return {(name,): max(0.0, now - at) for name, at in self.scraped.copy().items()}

    def _gauge(
        self,
        name: str,
        documentation: str,
        *labels: str,
        read: Callable[[], Mapping[Labels, float]] | None = None,
        over: Over = "max",
    ) -> Gauge:
        return self._named(f"kvgate_{name}", documentation, *labels, read=read, over=over)

    def _named(
        self,
        name: str,
        documentation: str,
        *labels: str,
        read: Callable[[], Mapping[Labels, float]] | None = None,
        over: Over = "max",
    ) -> Gauge:
        """One whose name is not ours."""
        gauge = Gauge(name, documentation, *labels, read=read, over=over)
        self._gauges.append(gauge)
        return gauge

    def _counter(self, name: str, documentation: str, *labels: str, over: Over = "sum") -> Counter:
        counter = Counter(f"kvgate_{name}_total", documentation, *labels)
        counter.over = over
        self._counted.append(counter)
        return counter

    def _histogram(self, name: str, documentation: str, bounds: Sequence[float], *labels: str) -> Histogram:
        histogram = Histogram(f"kvgate_{name}", documentation, bounds, *labels)
        self._counted.append(histogram)
        return histogram
