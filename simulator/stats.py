"""What an engine counts, under the names that vLLM exposes (``simulator.exposition`` writes them). Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

REQUEST_SECONDS: tuple[float, ...] = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
TTFT_SECONDS: tuple[float, ...] = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
    *(160.0, 640.0, 2560.0),
)
TOKEN_SECONDS: tuple[float, ...] = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
REQUEST_TOKENS: tuple[float, ...] = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)
STEP_TOKENS = tuple(float(bound) for bound in (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384))
TRANSFER_SECONDS: tuple[float, ...] = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 5.0)
TRANSFER_BYTES = tuple(float(2 ** (10 + power)) for power in range(1, 25, 2))
TRANSFER_PARTS: tuple[float, ...] = (
    *(10.0, 20.0, 30.0, 50.0, 75.0, 100.0, 200.0, 400.0, 1000.0, 2000.0, 4000.0, 10000.0, 20000.0, 50000.0),
)
"""Bucket bounds as vLLM 0.32 exposes them. Those of token counts depend on its max_model_len; these are a 4,096's."""

FINISHED = ("stop", "length", "abort", "error", "repetition")
"""Values of ``finished_reason``."""


class Histogram:
    """A Prometheus histogram: ``counts`` per bucket, not yet cumulative, the last one beyond every bound."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Iterable[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    @property
    def count(self) -> int:
        return sum(self.counts)


class TransferStats:
    """What a NIXL connector counts: KV that came, and on both sides what did not."""

    def __init__(self) -> None:
        self.seconds = Histogram(TRANSFER_SECONDS)
        self.post_seconds = Histogram((0.001, *TRANSFER_SECONDS))
        self.bytes = Histogram(TRANSFER_BYTES)
        self.descriptors = Histogram(TRANSFER_PARTS)
        self.failed = 0
        self.failed_notifications = 0
        self.expired = 0
        self.notifications_after_expiry = 0


class EngineStats:
    """Counters in tokens or requests since the start, and histograms; one object for each rank.

    ``external_hits`` counts tokens when a request looks for them, ``transferred`` when it is computed with them.
    """

    def __init__(self) -> None:
        self.prefix_queries = 0
        self.prefix_hits = 0
        self.external_queries = 0
        self.external_hits = 0
        self.preemptions = 0
        self.prompt_tokens = 0
        self.local_hits = 0
        self.transferred = 0
        self.generation_tokens = 0
        self.finished = dict.fromkeys(FINISHED, 0)
        self.request_prompt_tokens = Histogram(REQUEST_TOKENS)
        self.request_generation_tokens = Histogram(REQUEST_TOKENS)
        self.iteration_tokens = Histogram(STEP_TOKENS)
        self.request_max_num_generation_tokens = Histogram(REQUEST_TOKENS)
        self.request_params_n = Histogram((1.0, 2.0, 5.0, 10.0, 20.0))
        self.request_params_max_tokens = Histogram(REQUEST_TOKENS)
        self.time_to_first_token = Histogram(TTFT_SECONDS)
        self.inter_token_latency = Histogram(TOKEN_SECONDS)
        self.request_time_per_output_token = Histogram(TOKEN_SECONDS)
        self.e2e_request_latency = Histogram(REQUEST_SECONDS)
        self.request_queue_time = Histogram(REQUEST_SECONDS)
        self.request_inference_time = Histogram(REQUEST_SECONDS)
        self.request_prefill_time = Histogram(REQUEST_SECONDS)
        self.request_decode_time = Histogram(REQUEST_SECONDS)
        self.request_num_preemptions = Histogram((1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0))
        self.request_prefill_kv_computed_tokens = Histogram(REQUEST_TOKENS)
        self.transfers = TransferStats()
