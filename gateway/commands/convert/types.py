"""All plugin types of llm-d's EndpointPickerConfig, each with its verdict: its versions 0.7 to 1.0, old names included.

Those of filters, scorers and pickers are in ``scheduling_types.py``. What is here has no place in a scheduling profile,
or is read by ``handlers.py`` and ``flow_control.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gateway.commands.convert.scheduling_types import FILTERS, PICKERS, SCORERS
from gateway.commands.convert.verdict import PluginType, Slot, Verdict

SAME, NEAR, BUILT_IN, MISSING = Verdict

SINGLE = ("single-profile-handler", "data-parallel-profile-handler")
PREFILL_DECODE = "pd-profile-handler"
DISAGGREGATED = ("disagg-profile-handler", PREFILL_DECODE)
FILE_DISCOVERY = "file-discovery"
BY_HEADER = "header-profile-handler"
DETECTORS = ("utilization-detector", "concurrency-detector")
"""Filters that mostly are no part of a profile, but say when a pool is full."""
BY_LENGTH = "prefix-based-pd-decider"
ALWAYS = "always-disagg-pd-decider"


def _handler(name: str, verdict: Verdict, here: str, note: str = "") -> PluginType:
    return PluginType(name, Slot.HANDLER, verdict, here, note)


def _other(names: str, verdict: Verdict, here: str, note: str = "") -> Iterable[PluginType]:
    return (PluginType(name, Slot.NONE, verdict, here, note) for name in names.split())


_WHOLE = "without encode; where a prefill fails, kvgate's proxy has the decode endpoint compute the prompt"

HANDLERS = (
    _handler("single-profile-handler", SAME, "handler `single`"),
    _handler("data-parallel-profile-handler", BUILT_IN, "handler `single`", "each data-parallel rank is an endpoint"),
    *(
        _handler(name, SAME, "handler `prefill-decode` with a `threshold`; `epp.split`", _WHOLE)
        for name in DISAGGREGATED
    ),
    _handler(BY_HEADER, SAME, "handler `header-profile`"),
)

_HEADERS = "the picker sets what a sidecar needs (`epp.split`), and the proxy sends both legs itself"

OTHERS = (
    *_other("disagg-headers-handler prefill-header-handler", BUILT_IN, _HEADERS),
    *_other("dp-rank-header-handler", BUILT_IN, "each data-parallel rank is an endpoint"),
    *_other(BY_LENGTH, SAME, "`threshold` of the handler `prefill-decode`", "`promptTokens` is left out"),
    *_other(ALWAYS, SAME, "`threshold: 0` of the handler `prefill-decode`"),
    *_other("always-disagg-multimodal-decider", MISSING, "", "there is no encode leg"),
    *_other("approx-prefix-cache-producer", BUILT_IN, "the index: estimates for engines without KV events"),
    *_other("precise-prefix-cache-producer", BUILT_IN, "the index, by the engines' KV events: `endpoints[].kv_events`"),
    *_other("burst-prefix-cache-producer", BUILT_IN, "a placement counts at once: the next one of a burst sees it"),
    *_other("token-producer tokenizer", BUILT_IN, "the model's own tokenizer: `models[].tokenizer`"),
    *_other("inflight-load-producer", BUILT_IN, "the ledger"),
    *_other("predicted-latency-producer", BUILT_IN, "the cost model, fitted to each engine"),
    *_other(
        "latency-slo-admitter probabilistic-admitter",
        NEAR,
        "`models[].queue`",
        "under overload, bands below 0 are refused first",
    ),
    *_other("mm-embeddings-cache-producer", BUILT_IN, "images are part of the block keys"),
    *_other("session-id-producer agent-identity", NEAR, "`models[].session`", "headers, a cookie, or the body"),
    *_other("models-*", BUILT_IN, "`GET /v1/models` of all engines"),
    *_other("*-notification-source", BUILT_IN, "endpoints that come and go are followed"),
    *_other(
        "metrics-data-source", NEAR, "`fleet.scrape`", "at the engine's own address, on `/metrics`, by `https` with it"
    ),
    *_other("core-metrics-extractor", NEAR, "metrics by vLLM's names", "other names cannot be configured"),
    *_other(FILE_DISCOVERY, SAME, "`models[].discover`: `file`", "the file is always watched"),
    *_other("dcgm-* topology-extractor", MISSING, ""),
    *_other("p2p-source-producer disaggregatedset-rollout-screener request-attribute-reporter", MISSING, ""),
    *_other("outlen-bucket", BUILT_IN, "the lengths of answers are learned by model"),
    *_other("multicluster-*", MISSING, "", "pools of several clusters"),
    *_other("cross-replica*", NEAR, "`sharing.url`", "loads, queues and sessions only"),
    *_other("openai-parser anthropic-parser vllmhttp-parser sglanghttp-parser", BUILT_IN, "the routes of the proxy"),
    *_other(
        "vllmgrpc-parser vertexai-parser passthrough-parser", MISSING, "", "bodies are those of the proxy's routes"
    ),
    *_other("global-strict-fairness-policy", BUILT_IN, "order `first-come`, unless the ordering says another"),
    *_other("round-robin-fairness-policy", SAME, "order `fair-requests`"),
    *_other("program-aware-fairness", NEAR, "order `fair-tokens`", "shares of tokens, not the least attained service"),
    *_other("fcfs-ordering-policy", SAME, "order `first-come`"),
    *_other("edf-ordering-policy", NEAR, "order `earliest-deadline`", "deadlines are those of objectives"),
    *_other("slo-deadline-ordering-policy", SAME, "order `earliest-deadline`"),
    *_other("static-usage-limit-policy", BUILT_IN, "every band may fill the engines"),
    *_other(
        "priority-holdback-policy soft-reflective-ceiling-policy",
        NEAR,
        "`models[].queue.reserve`",
        "shares for lower bands, not ceilings",
    ),
    *_other(
        "sheddable-eviction-filter priority-then-time-eviction-order-policy", MISSING, "", "what runs is not evicted"
    ),
    *_other("max-saturation-detector", BUILT_IN, "a model's queue asks the ledger for room"),
    *_other("header-based-testing-filter destination-endpoint-served-verifier", MISSING, "", "for conformance tests"),
)

USUAL: Mapping[str, Mapping[str, object]] = {
    "metrics-data-source": {"scheme": "http", "path": "/metrics", "insecureSkipVerify": True},
    "core-metrics-extractor": {"defaultEngine": "vllm"},
}
"""Parameters with which a plugin does what kvgate does by itself."""

TYPES = {one.name: one for one in (*FILTERS, *SCORERS, *PICKERS, *HANDLERS, *OTHERS)}
"""By name; a ``*`` in one stands for the rest of a family of names."""
