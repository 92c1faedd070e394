"""Gauges: what is true now, kept as plain numbers and made into samples only when someone collects them.

Setting one is a store into a dict (0.1 us, against 1 us for a client library's gauge and its lock), and what ages, such
as a scrape, is computed at the moment it is read. States and reasons are shown as one series with the value 1, which
goes when the state changes: a scrape shows one state, never a former one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from gateway.framework import Clock


class Present(Collector):
    """The state of queues, engines, endpoints and indexes. Whoever writes it is on the loop's thread.

    ``in_flight``: requests by endpoint. ``queued``: requests by model. ``engines``: (up, why not). ``spared``: by
    engine, whether it is used although it is not up; those that never were are missing. ``scraped``:
    Clock.monotonic() of the last good scrape by engine. ``streams``: state by endpoint. ``blocks``: by model.
    ``trusted``: by model, whether its prompts are placed by our token ids.
    ``exact``: by model, the share of its last prompts whose ids are the engines'.
    ``agreeing``: by model and endpoint, whether its engine makes the same ids.
    ``expired``: the engine's own count of KV leases that ran out, by endpoint. ``fetching``: by endpoint, its waiting
    requests by the stage of fetching their KV. The mappings in it are replaced, never changed.
    ``draining``: by endpoint, whether it is out of use without a fault.
    ``hidden``: endpoints that are dropped, though requests on them may still run.
    ``held``: tells how many bytes of requests and answers are.
    """

    def __init__(self, clock: Clock, version: str) -> None:
        self._clock = clock
        self._version = version
        self.in_flight: dict[str, int] = {}
        self.queued: dict[str, int] = {}
        self.engines: dict[str, tuple[bool, str]] = {}
        self.spared: dict[str, bool] = {}
        self.scraped: dict[str, float] = {}
        self.streams: dict[str, str] = {}
        self.blocks: dict[str, int] = {}
        self.trusted: dict[str, bool] = {}
        self.exact: dict[str, float] = {}
        self.agreeing: dict[tuple[str, str], bool] = {}
        self.expired: dict[str, float] = {}
        self.fetching: dict[str, Mapping[str, int]] = {}
        self.draining: dict[str, bool] = {}
        self.hidden: dict[str, None] = {}
        self.held: Callable[[], int] = lambda: 0

    def collect(self) -> Iterator[GaugeMetricFamily]:
        # The dicts are copied, which is one step under the GIL: rendering may run in another thread than the writers.
        yield _gauge("kvgate_build_info", "Always 1.", {(self._version,): 1}, "version")
        yield _gauge(
            "kvgate_held_bytes",
            "Bytes of requests' bodies and of unstreamed answers that are held, of those that listen.max_held allows.",
            {(): self.held()},
        )
        yield _gauge(
            "kvgate_in_flight_requests",
            "Requests placed on an endpoint and not yet settled.",
            {(name,): count for name, count in self.in_flight.copy().items() if name not in self.hidden},
            "endpoint",
        )
        yield _gauge(
            "kvgate_queued_requests",
            "Requests that wait for admission.",
            {(name,): count for name, count in self.queued.copy().items()},
            "model",
        )
        engines = self.engines.copy()
        yield _gauge(
            "kvgate_engine_up",
            "1 while the engine answers its probes.",
            {(name,): up for name, (up, _) in engines.items()},
            "engine",
        )
        yield _gauge(
            "kvgate_engine_down_reason",
            "1 for the reason why an engine is down; no series while it is up.",
            {(name, reason): 1 for name, (up, reason) in engines.items() if not up},
            "engine",
            "reason",
        )
        yield _gauge(
            "kvgate_engine_spared",
            "1 while an engine is used although it is down, since more than half of a model's endpoints would be out.",
            {(name,): spared for name, spared in self.spared.copy().items()},
            "engine",
        )
        yield _gauge(
            "kvgate_endpoint_draining",
            "1 while an endpoint gets no new requests, by the configuration or an operator; it is in order.",
            {(name,): draining for name, draining in self.draining.copy().items()},
            "endpoint",
        )
        now = self._clock.monotonic()
        yield _gauge(
            "kvgate_scrape_age_seconds",
            "Age of what we know of an engine's own metrics: since its last good scrape.",
            {(name,): max(0.0, now - at) for name, at in self.scraped.copy().items()},
            "engine",
        )
        yield _gauge(
            "kvgate_kv_stream_state",
            "1 for the state of an endpoint's KV event stream: off, connecting, live or partial.",
            dict.fromkeys(self.streams.copy().items(), 1),
            "endpoint",
            "state",
        )
        yield _gauge(
            "kvgate_kv_index_blocks",
            "Block keys in a model's cache index.",
            {(name,): count for name, count in self.blocks.copy().items()},
            "model",
        )
        yield _gauge(
            "kvgate_token_parity",
            "1 while our token ids agree with the engines'; 0: they do not, and prompts are estimated.",
            {(name,): trusted for name, trusted in self.trusted.copy().items()},
            "model",
        )
        yield _gauge(
            "kvgate_prompts_exact_ratio",
            "Of a model's last 1,000 prompts, the share whose token ids are the engines', to the last one.",
            {(name,): share for name, share in self.exact.copy().items()},
            "model",
        )
        yield _gauge(
            "kvgate_endpoint_token_parity",
            "0 while an endpoint's engine makes other tokens than we do, and what it holds is estimated; 1: again not.",
            {(model, name): agrees for (model, name), agrees in self.agreeing.copy().items()},
            "model",
            "endpoint",
        )
        yield _gauge(
            "kvgate_engine_kv_expired_requests",
            "The engine's own count, since its start: requests whose KV it computed for another, and nobody fetched.",
            {(name,): count for name, count in self.expired.copy().items()},
            "endpoint",
        )
        yield _gauge(
            "kvgate_engine_kv_fetching_requests",
            "Requests that wait in the engine, by the stage of fetching their KV from another engine.",
            {(name, stage): count for name, at in self.fetching.copy().items() for stage, count in at.items()},
            "endpoint",
            "stage",
        )


def _gauge(name: str, documentation: str, values: dict[tuple[str, ...], float], *labels: str) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, documentation, labels=labels)
    for label_values, value in values.items():
        family.add_metric(label_values, value)
    return family
