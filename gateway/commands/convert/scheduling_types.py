"""llm-d's filters, scorers and pickers, and kvgate's plugins of them. Parameters and their defaults are llm-d's."""

from __future__ import annotations

import math
from functools import partial

from gateway.commands.convert.given import Given
from gateway.commands.convert.verdict import Made, Maker, PluginType, Slot, Verdict

SAME, NEAR, BUILT_IN, MISSING = Verdict

HARD = 1000.0
"""The weight of a scorer that stands for a rule: far above any sum of others."""

MOST_FALLBACKS = 15
"""Of ``epp.fallbacks``."""

TOKEN = "x-session-token"
SESSION_ID = "x-session-id"

METRICS = {
    "active-requests": "requests",
    "running-requests": "running",
    "waiting-queue": "waiting",
    "kv-cache-utilization": "kv",
}
"""Of ``utilization-filter``: kvgate's parameter by the metric's name."""

# Names of producers, whose data kvgate has by itself.
PRODUCERS = ("prefixMatchInfoProducerName", "inFlightLoadProducerName", "latencyPredictionProducerName")


def plain(kind: str, given: Given) -> Made:
    """A plugin without parameters that matter."""
    _unused(given)
    return Made(kind)


def role(allow: tuple[str, ...], given: Given) -> Made:
    return Made("role", {"allow": list(allow)})


def label_selector(given: Given) -> Made | None:
    match = given.mapping("matchLabels")
    expressions = []
    for each in given.each("matchExpressions"):
        operator = each.one_of("operator", ("In", "NotIn", "Exists", "DoesNotExist"), "")
        values = list(each.texts("values"))
        expressions.append({"key": each.needed("key"), "operator": operator} | ({"values": values} if values else {}))
        each.end()
    parameters = ({"match": match} if match else {}) | ({"expressions": expressions} if expressions else {})
    return Made("labels", parameters) if parameters else None


def by_label(given: Given) -> Made:
    label, values = given.needed("label"), list(given.texts("validValues"))
    allows = given.flag("allowsNoLabel")
    if not values:
        if not allows:
            raise given.error("validValues", "without values and allowsNoLabel it keeps no endpoint")
        return Made("labels", {"expressions": [{"key": label, "operator": "DoesNotExist"}]})
    return Made("labels", {"match": {label: values}} | ({"unlabelled": True} if allows else {}))


def prefix_affinity(given: Given) -> Made | None:
    threshold = given.number("affinityThreshold", 0.8, most=1.0)
    source = given.one_of("ttftSource", ("prefillThroughput", "latencyPredictor"), "prefillThroughput")
    speed = given.number("peakPrefillThroughput", 15928)
    parameters = {
        "threshold": threshold,
        "penalty": given.number("maxTTFTPenaltyMs", 18000) / 1000,
        "exploration": given.number("explorationProbability", 0.0, most=1.0),
        "tokens_per_second": speed if source == "prefillThroughput" and speed else None,
    }
    calibrated = given.has("prefillCalibrationFile")
    for name in ("prefillCalibrationFile", "prefillCalibrationFingerprint", "prefillCalibrationRequired"):
        given.raw(name)
    _unused(given)
    note = "the calibration file is not read: give peakPrefillThroughput" if calibrated else ""
    return Made("prefix-affinity", parameters, note=note) if threshold > 0 else None


def slo_tiers(given: Given) -> Made:
    given.number("epsilonExploreNeg", 0.01, most=1.0)
    _unused(given)
    return Made("slo")


def utilization(given: Given) -> Made:
    limits: dict[str, float] = {}
    for each in given.each("conditions"):
        name = METRICS[each.one_of("metric", METRICS, "")]
        if not each.has("maxValue"):
            raise each.error("maxValue", "this key is required")
        limit = each.number("maxValue", 0.0, most=1.0 if name == "kv" else math.inf)
        limits[name] = min(limit, limits.get(name, math.inf))
        each.end()
    if not limits:
        raise given.error("conditions", "at least one condition is required")
    fallback = given.flag("fallbackOnEmpty")
    _unused(given)
    return Made("utilization", limits | ({"fallback": True} if fallback else {}))


def utilization_detector(given: Given) -> Made:
    """In a profile it keeps what is below its thresholds, and all where nothing is."""
    room = 1 + given.number("headroom", 0.0)
    queue = given.number("queueDepthThreshold", 5) * room
    kv = min(1.0, given.number("kvCacheUtilThreshold", 0.8, most=1.0) * room)
    given.raw("metricsStalenessThreshold")
    return Made("utilization", {"waiting": max(0, math.ceil(queue) - 1), "kv": round(kv, 6), "fallback": True})


def concurrency_detector(given: Given) -> Made | None:
    room = 1 + given.number("headroom", 0.0)
    most = given.integer("maxConcurrency", 100)
    by_tokens = given.one_of("concurrencyMode", ("requests", "tokens"), "requests") == "tokens"
    given.raw("maxTokenConcurrency")
    _unused(given)
    return None if by_tokens else Made("utilization", {"requests": max(0, math.ceil(most * room) - 1)})


def session(hard: bool, given: Given) -> Made:
    strategy = given.one_of("strategy", ("encoded_endpoint_header", "session_id"), "encoded_endpoint_header")
    profile = given.text("profileName")
    token = given.within("encodedEndpointHeaderConfig")
    header = token.text("header").strip().lower() or given.text("headerName").strip().lower() or TOKEN
    token.end()
    by_id = given.within("sessionIdConfig")
    headers, note = _sources(by_id)
    ttl = by_id.number("evictionTtlSeconds", 300)
    by_id.raw("evictionSweepSeconds")
    by_id.end()
    if strategy == "session_id":
        if hard:
            note = "; ".join([*([note] if note else []), f"a scorer with the weight {HARD:g} in the place of a filter"])
        return Made(
            "session-affinity",
            {"ttl": ttl or 3600.0},
            HARD if hard else 1.0,
            note,
            Slot.SCORER if hard else None,
            headers,
        )
    parameters = ({"header": header} if header != TOKEN else {}) | ({"leg": "prefill"} if profile == "prefill" else {})
    return Made("session-pin" if hard else "session-token", parameters)


def _sources(given: Given) -> tuple[tuple[str, ...], str]:
    """The headers in which a session's id is, if they are not those that kvgate looks at; and what cannot be had."""
    headers, notes = [], ""
    for each in given.each("sources"):
        if header := each.text("header").strip().lower():
            headers.append(header)
        if attribute := each.text("attribute"):
            notes = f"the attribute {attribute!r} is not known: sessions are found in headers, cookies and bodies"
        each.end()
    return (tuple(headers) if headers and headers != [SESSION_ID] else ()), notes


def queue(given: Given) -> Made:
    return Made("queue-depth", {"relative": True})


def running(given: Given) -> Made:
    return Made("active-requests", {"relative": "range"})


def load_aware(given: Given) -> Made:
    limit = given.number("threshold", 128)
    return Made("queue-depth", {"limit": limit or 128}, weight=0.5)


def prefix(given: Given) -> Made:
    long = given.number("matchLengthWeight", 0.0, most=1.0)
    given.number("matchLengthScaleTokens", 8192)
    # Where other versions had the index's parameters: this plugin has none of them.
    for name in (
        *("autoTune", "blockSize", "blockSizeTokens", "hashBlockSize", "lruCapacityPerServer"),
        *("maxPrefixBlocksToMatch", "maxPrefixTokensToMatch"),
    ):
        given.raw(name)
    _unused(given)
    return Made(
        "prefix-cache", note="matchLengthWeight: the length of a match does not count beside its share" if long else ""
    )


def precise_prefix(given: Given) -> Made:
    """Its parameters are those of an index and of its events, which kvgate has by itself."""
    given.rest()
    return Made("prefix-cache")


def active_request(given: Given) -> Made:
    given.raw("requestTimeout")  # llm-d itself ignores it
    idle = given.integer("idleThreshold", 0)
    busy = given.number("maxBusyScore", 1.0, most=1.0)
    _unused(given)
    more = ({"idle": idle} if idle else {}) | ({"busy": busy} if busy != 1.0 else {})
    return Made("active-requests", {"relative": "most"} | more)


def token_load(given: Given) -> Made:
    threshold = given.integer("queueThresholdTokens", 4_194_304)
    _unused(given)
    return Made("token-load", {"threshold": threshold or 4_194_304})


def latency(given: Given) -> Made:
    for name in ("ttftWeight", "tpotWeight", "compositeKVWeight", "compositeQueueWeight", "compositePrefixWeight"):
        given.number(name, 0.0)
    given.one_of("headroomSelectionStrategy", ("least", "most"), "least")
    _unused(given)
    return Made("placement-cost")


def no_hit_lru(given: Given) -> Made:
    for name in ("prefixPluginType", "prefixPluginName"):  # llm-d itself never used them
        given.raw(name)
    size = given.integer("lruSize", 1024)
    _unused(given)
    return Made("no-hit-lru", {"endpoints": size} if size not in (0, 1024) else {})


def picker(kind: str, given: Given) -> Made:
    number = given.integer("maxNumOfEndpoints", 1)
    return Made(kind, fallbacks=min(MOST_FALLBACKS, max(0, number - 1)))


def load_aware_picker(given: Given) -> Made:
    given.rest()
    return Made("max-score")


def _unused(given: Given) -> None:
    for name in PRODUCERS:
        given.raw(name)


def _filter(name: str, verdict: Verdict, here: str, note: str = "", make: Maker | None = None) -> PluginType:
    return PluginType(name, Slot.FILTER, verdict, here, note, make)


def _scorer(name: str, verdict: Verdict, here: str, note: str = "", make: Maker | None = None) -> PluginType:
    return PluginType(name, Slot.SCORER, verdict, here, note, make)


def _picker(name: str, verdict: Verdict, here: str, note: str, make: Maker) -> PluginType:
    return PluginType(name, Slot.PICKER, verdict, here, note, make)


_SELECTOR = "filter `labels`: `match`, `expressions`"
_NO_ATTRIBUTES = "endpoints have no attributes of other plugins' making"
_PAIRS = "of pairs of endpoints: `same` and `prefer` of the handler `prefill-decode`"
_DETECTOR = "as a saturation detector: a model's queue asks the ledger for room"
_ADAPTERS = "only endpoints that have loaded the adapter are candidates"
_ALL_CLIENTS = "other clients' requests count, too"

FILTERS = (
    _filter("decode-filter", SAME, "filter `role`: `[decode, both]`", "", partial(role, ("decode", "both"))),
    _filter(
        "prefill-filter",
        NEAR,
        "filter `role`: `[prefill, both]`",
        "an endpoint without a role is `both`, and may prefill",
        partial(role, ("prefill", "both")),
    ),
    _filter("encode-filter", MISSING, "", "there is no encode leg"),
    _filter("label-selector-filter", SAME, _SELECTOR, "", label_selector),
    _filter("by-label-selector", SAME, _SELECTOR, "", label_selector),
    _filter("by-label", SAME, "filter `labels`: `match`, `unlabelled`", "", by_label),
    _filter(
        "prefix-cache-affinity-filter",
        SAME,
        "filter `prefix-affinity`",
        "`ttftSource: latencyPredictor` is the fitted cost model's estimate",
        prefix_affinity,
    ),
    _filter(
        "slo-headroom-tier-filter", NEAR, "filter `slo`", "by kvgate's cost model, and without exploration", slo_tiers
    ),
    _filter("utilization-filter", SAME, "filter `utilization`", _ALL_CLIENTS, utilization),
    _filter(
        "session-affinity-filter",
        SAME,
        "filter `session-pin`",
        "strategy `session_id`: the scorer `session-affinity` with a weight above all others",
        partial(session, True),
    ),
    _filter("topology-affinity-filter", MISSING, "", _PAIRS),
    _filter("endpoint-attribute-filter", MISSING, "", _NO_ATTRIBUTES),
    _filter("lora-residency*", BUILT_IN, _ADAPTERS),
    _filter("utilization-detector", NEAR, "filter `utilization` in a profile", _DETECTOR, utilization_detector),
    _filter(
        "concurrency-detector",
        NEAR,
        "filter `utilization` in a profile",
        f"{_DETECTOR}; tokens are not counted",
        concurrency_detector,
    ),
)

SCORERS = (
    _scorer(
        "queue-scorer",
        SAME,
        "scorer `queue-depth`: `relative: true`",
        "prompts that were just placed count at once, before a scrape shows them",
        queue,
    ),
    _scorer(
        "running-requests-size-scorer",
        NEAR,
        "scorer `active-requests`: `relative: range`",
        "requests in flight, those that wait included",
        running,
    ),
    _scorer(
        "kv-cache-utilization-scorer", SAME, "scorer `kv-cache-utilization`", "", partial(plain, "kv-cache-utilization")
    ),
    _scorer("load-aware-scorer", SAME, "scorer `queue-depth` with a `limit`, at half the weight", "", load_aware),
    _scorer("prefix-cache-scorer", SAME, "scorer `prefix-cache`", "`matchLengthWeight` is left out", prefix),
    _scorer("precise-prefix-cache-scorer", SAME, "scorer `prefix-cache`", "all tiers count alike", precise_prefix),
    _scorer("active-request-scorer", SAME, "scorer `active-requests`: `relative: most`", _ALL_CLIENTS, active_request),
    _scorer("token-load-scorer", SAME, "scorer `token-load`", "", token_load),
    _scorer("lora-affinity-scorer", BUILT_IN, _ADAPTERS, "among these there is no score"),
    _scorer("lora-load-state-scorer", BUILT_IN, _ADAPTERS, "among these there is no score"),
    _scorer("latency-scorer", NEAR, "scorer `placement-cost`", "kvgate's own cost model, in seconds", latency),
    _scorer(
        "session-affinity-scorer",
        SAME,
        "scorer `session-token`; strategy `session_id`: `session-affinity`",
        "",
        partial(session, False),
    ),
    _scorer("no-hit-lru-scorer", SAME, "scorer `no-hit-lru`", "", no_hit_lru),
    _scorer("topology-affinity-scorer", MISSING, "", _PAIRS),
    _scorer("header-label-affinity-scorer", MISSING, ""),
    _scorer("endpoint-attribute-scorer", MISSING, "", _NO_ATTRIBUTES),
    _scorer("context-length-aware", MISSING, "", "endpoints by the length of prompts"),
    _scorer("mm-embeddings-cache-scorer", BUILT_IN, "images are part of the block keys that `prefix-cache` matches"),
    _scorer("lmetric-scorer", SAME, "scorer `lmetric`", "", partial(plain, "lmetric")),
    _scorer("metric-scorer", MISSING, "", "any metric of an engine"),
    _scorer("attribute-weight", MISSING, "", _NO_ATTRIBUTES),
    _scorer("thunder-agent", MISSING, "", "admission and placement by an agent's program"),
)

PICKERS = (
    _picker("max-score-picker", SAME, "picker `max-score`; `epp.fallbacks`", "", partial(picker, "max-score")),
    _picker("random-picker", SAME, "picker `random`; `epp.fallbacks`", "", partial(picker, "random")),
    _picker(
        "weighted-random-picker",
        SAME,
        "picker `weighted-random`; `epp.fallbacks`",
        "",
        partial(picker, "weighted-random"),
    ),
    _picker(
        "load-aware-picker",
        NEAR,
        "picker `max-score`",
        "each placement is booked before the next decision, so that no herd can form",
        load_aware_picker,
    ),
)
