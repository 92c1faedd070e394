"""The families of a scrape: names (without ``vllm:``), words, and where their figures come from. Data only."""

from __future__ import annotations

from collections.abc import Callable

from simulator.engine import Engine
from simulator.stats import Histogram

Read = Callable[[Engine], float]


def _cached(engine: Engine) -> int:
    return engine.stats.local_hits + engine.stats.transferred


def _is_storage(engine: Engine) -> bool:
    """Its connector does not say which tier its tokens come from."""
    return engine.settings.connector == "shared-storage"


COUNTERS: tuple[tuple[str, str, Read], ...] = (
    (
        "prefix_cache_queries",
        "Prefix cache queries, in terms of number of queried tokens.",
        lambda e: e.stats.prefix_queries,
    ),
    ("prefix_cache_hits", "Prefix cache hits, in terms of number of cached tokens.", lambda e: e.stats.prefix_hits),
    (
        "external_prefix_cache_queries",
        "External prefix cache queries from KV connector cross-instance cache sharing, in terms of number of queried "
        "tokens.",
        lambda e: e.stats.external_queries,
    ),
    (
        "external_prefix_cache_hits",
        "External prefix cache hits from KV connector cross-instance cache sharing, in terms of number of cached "
        "tokens.",
        lambda e: e.stats.external_hits,
    ),
    ("mm_cache_queries", "Multi-modal cache queries, in terms of number of queried items.", lambda e: 0),
    ("mm_cache_hits", "Multi-modal cache hits, in terms of number of cached items.", lambda e: 0),
    ("num_preemptions", "Cumulative number of preemption from the engine.", lambda e: e.stats.preemptions),
    ("prompt_tokens", "Number of prefill tokens processed.", lambda e: e.stats.prompt_tokens),
    ("prompt_tokens_cached", "Number of cached prompt tokens (local + external).", lambda e: _cached(e)),
    ("generation_tokens", "Number of generation tokens processed.", lambda e: e.stats.generation_tokens),
)

SOURCES: tuple[tuple[str, Read], ...] = (
    ("local_compute", lambda e: e.stats.prompt_tokens - _cached(e)),
    ("local_cache_hit", lambda e: e.stats.local_hits),
    ("external_kv_transfer", lambda e: e.stats.transferred),
)
TIERS: tuple[tuple[str, Read], ...] = (
    ("device", lambda e: e.stats.prefix_hits),
    ("host", lambda e: 0),
    ("p2p", lambda e: 0 if _is_storage(e) else e.stats.external_hits),
    ("disk", lambda e: 0),
    ("external_unspecified", lambda e: e.stats.external_hits if _is_storage(e) else 0),
)

HISTOGRAMS: tuple[tuple[str, str, Callable[[Engine], Histogram]], ...] = (
    ("request_prompt_tokens", "Number of prefill tokens processed.", lambda e: e.stats.request_prompt_tokens),
    (
        "request_generation_tokens",
        "Number of generation tokens processed.",
        lambda e: e.stats.request_generation_tokens,
    ),
    (
        "iteration_tokens_total",
        "Histogram of number of tokens per engine_step.",
        lambda e: e.stats.iteration_tokens,
    ),
    (
        "request_max_num_generation_tokens",
        "Histogram of maximum number of requested generation tokens.",
        lambda e: e.stats.request_max_num_generation_tokens,
    ),
    ("request_params_n", "Histogram of the n request parameter.", lambda e: e.stats.request_params_n),
    (
        "request_params_max_tokens",
        "Histogram of the max_tokens request parameter.",
        lambda e: e.stats.request_params_max_tokens,
    ),
    (
        "time_to_first_token_seconds",
        "Histogram of time to first token in seconds.",
        lambda e: e.stats.time_to_first_token,
    ),
    (
        "inter_token_latency_seconds",
        "Histogram of inter-token latency in seconds.",
        lambda e: e.stats.inter_token_latency,
    ),
    (
        "request_time_per_output_token_seconds",
        "Histogram of time_per_output_token_seconds per request.",
        lambda e: e.stats.request_time_per_output_token,
    ),
    (
        "e2e_request_latency_seconds",
        "Histogram of e2e request latency in seconds.",
        lambda e: e.stats.e2e_request_latency,
    ),
    (
        "request_queue_time_seconds",
        "Histogram of time spent in WAITING phase for request.",
        lambda e: e.stats.request_queue_time,
    ),
    (
        "request_inference_time_seconds",
        "Histogram of time spent in RUNNING phase for request.",
        lambda e: e.stats.request_inference_time,
    ),
    (
        "request_prefill_time_seconds",
        "Histogram of time spent in PREFILL phase for request.",
        lambda e: e.stats.request_prefill_time,
    ),
    (
        "request_decode_time_seconds",
        "Histogram of time spent in DECODE phase for request.",
        lambda e: e.stats.request_decode_time,
    ),
    (
        "request_num_preemptions",
        "Histogram of the number of times a request was preempted.",
        lambda e: e.stats.request_num_preemptions,
    ),
    (
        "request_prefill_kv_computed_tokens",
        "Histogram of new KV tokens computed during prefill (excluding cached tokens).",
        lambda e: e.stats.request_prefill_kv_computed_tokens,
    ),
)

NIXL_HISTOGRAMS: tuple[tuple[str, str, Callable[[Engine], Histogram]], ...] = (
    (
        "nixl_xfer_time_seconds",
        "Histogram of transfer duration for NIXL KV Cache transfers.",
        lambda e: e.stats.transfers.seconds,
    ),
    (
        "nixl_post_time_seconds",
        "Histogram of transfer post time for NIXL KV Cache transfers.",
        lambda e: e.stats.transfers.post_seconds,
    ),
    (
        "nixl_bytes_transferred",
        "Histogram of bytes transferred per NIXL KV Cache transfers.",
        lambda e: e.stats.transfers.bytes,
    ),
    (
        "nixl_num_descriptors",
        "Histogram of number of descriptors per NIXL  KV Cache transfers.",
        lambda e: e.stats.transfers.descriptors,
    ),
)

NIXL_COUNTERS: tuple[tuple[str, str, Read], ...] = (
    (
        "nixl_num_failed_transfers",
        "Number of failed NIXL KV Cache transfers, including handshake and notification failures. NOTE: KV expiry is "
        "tracked separately in vllm:nixl_num_kv_expired_reqs.",
        lambda e: e.stats.transfers.failed,
    ),
    (
        "nixl_num_failed_notifications",
        "Number of failed NIXL KV Cache notifications. Retained for compatibility; these failures are also included in "
        "vllm:nixl_num_failed_transfers.",
        lambda e: e.stats.transfers.failed_notifications,
    ),
    (
        "nixl_num_kv_expired_reqs",
        "Number of requests that had their KV expire. NOTE: This metric is tracked on the P instance.",
        lambda e: e.stats.transfers.expired,
    ),
    (
        "nixl_num_notifications_after_expiry",
        "Number of completion notifications for requests that were no longer tracked, usually because their KV lease "
        "expired. The KV blocks may have been reused before the transfer finished. Counted per notification (one per "
        "remote rank), not per request.",
        lambda e: e.stats.transfers.notifications_after_expiry,
    ),
)

WAITING_BY_REASON = (
    "Number of waiting requests by reason. Reason labels: 'capacity' = waiting for scheduling capacity; 'deferred' = "
    "deferred by transient constraints (LoRA budget, KV transfer, blocked status). Sum of all reasons equals "
    "vllm:num_requests_waiting."
)
FETCH_BY_STAGE = (
    "Number of waiting requests by async KV load stage. Stage labels: 'waiting_to_start' = needs an async KV load that "
    "has not started; 'in_progress' = load started and not yet reported finished; 'completed_waiting' = load finished, "
    "request not running yet."
)
