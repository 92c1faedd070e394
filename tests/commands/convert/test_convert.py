"""Covers: gateway/commands/convert/convert.py, gateway/commands/convert/document.py,
gateway/commands/convert/handlers.py, gateway/commands/convert/flow_control.py,
gateway/commands/convert/kv_events.py, gateway/commands/convert/plugins_yaml.py,
gateway/commands/convert/scheduling_types.py,
gateway/commands/convert/types.py, gateway/commands/convert/verdict.py.

Configurations of llm-d's endpoint picker, converted, are loaded and wired as any plugins.yaml.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.commands.convert.convert import Converted, convert
from gateway.commands.convert.document import lookup
from gateway.commands.convert.plugins_yaml import plugins_yaml
from gateway.commands.convert.types import TYPES
from gateway.commands.convert.verdict import Slot, Verdict
from gateway.config.build import build_orders, build_scheduler
from gateway.config.load import loads
from gateway.config.settings import Config
from gateway.errors import ConfigError
from gateway.scheduling.scheduler import Scheduler
from tests.support.candidates import context

DATA = Path(__file__).parents[2] / "data" / "llmd"
FILES = sorted(DATA.glob("*.yaml"))
MODELS = [{"name": "m", "endpoints": [{"url": "http://a:1"}]}]
HEAD = "apiVersion: llm-d.ai/v1\nkind: EndpointPickerConfig\n"


def converted(name: str) -> Converted:
    return convert((DATA / name).read_text(), name, MODELS)


def of(text: str) -> Converted:
    return convert(HEAD + text, "f.yaml", MODELS)


def wired(made: Converted) -> tuple[Config, Scheduler]:
    config = loads(plugins_yaml(made, "f.yaml"), {})
    build_orders(config, context)
    return config, build_scheduler(config, context)


def said(made: Converted) -> dict[str, str]:
    """What the findings say, by plugin."""
    return {one.what: f"{one.verdict}: {one.said}" for one in made.findings}


def scorers(made: Converted, profile: int = 0) -> dict[str, float]:
    return {one["plugin"]: one["weight"] for one in made.values["profiles"][profile]["scorers"]}


def plugins(made: Converted) -> dict[str, tuple[str, dict[str, Any]]]:
    return {one["name"]: (one["type"], one.get("parameters", {})) for one in made.values["plugins"]}


# llm-d's own files


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_sample_is_converted_to_what_can_be_loaded(file) -> None:
    made = converted(file.name)
    config, scheduler = wired(made)
    assert set(scheduler.handlers) == {"default"}
    assert {one.plugin for profile in config.profiles for one in profile.scorers} <= set(plugins(made))
    # Each plugin of the file has its verdict.
    text = file.read_text()
    found = {one.what for one in made.findings}
    named = {
        line.split("name: ")[-1].split(",")[0].strip("}\n ")
        for line in text.splitlines()
        if "type: " in line and "name: " in line
    }
    assert named <= found, named - found


def test_the_chart_s_default_is_llm_d_s_blend() -> None:
    made = converted("chart-default.yaml")
    assert scorers(made) == {"queue-scorer": 2.0, "kv-cache-utilization-scorer": 2.0, "prefix-cache-scorer": 3.0}
    assert plugins(made)["queue-scorer"] == ("queue-depth", {"relative": True})
    assert made.values["profiles"][0]["filters"] == ["healthy"]
    assert made.losses == ()


def test_a_file_without_plugins_has_the_same_blend() -> None:
    made = of("")
    assert scorers(made) == {"queue-scorer": 2.0, "kv-cache-utilization-scorer": 2.0, "prefix-cache-scorer": 3.0}
    wired(made)


def test_plugins_without_profiles_are_one_profile() -> None:
    made = of("plugins: [{type: queue-scorer}, {type: decode-filter}, {type: random-picker}]\n")
    [profile] = made.values["profiles"]
    assert profile["filters"] == ["healthy", "decode-filter"]
    assert (scorers(made), profile["picker"]) == ({"queue-scorer": 1.0}, "random-picker")


def test_the_predictor_s_pipeline_is_the_cost_model_s() -> None:
    made = converted("chart-latency-predictor.yaml")
    [profile] = made.values["profiles"]
    assert profile["filters"] == [
        "healthy",
        "strict-affinity-filter",
        "slo-headroom-tier-filter",
        "loose-affinity-filter",
    ]
    assert plugins(made)["strict-affinity-filter"] == (
        "prefix-affinity",
        {"threshold": 0.99, "penalty": 18.0, "exploration": 0.0, "tokens_per_second": 15928},
    )
    assert plugins(made)["latency-scorer"][0] == "placement-cost"
    assert profile["picker"] == "weighted-random-picker"


def test_load_aware_is_half_of_its_weight() -> None:
    made = converted("epp-burst-prefix-cache-config.yaml")
    assert scorers(made) == {"prefix-cache-scorer": 2.0, "load-aware-scorer": 0.5}
    assert plugins(made)["load-aware-scorer"] == ("queue-depth", {"limit": 128})


def test_two_legs_are_planned_by_the_same_threshold() -> None:
    made = converted("pd-epp-config.yaml")
    [handler] = made.values["handlers"]
    assert handler == {
        "name": "default",
        "type": "prefill-decode",
        "parameters": {"prefill": "prefill", "decode": "decode", "threshold": 16},
    }
    assert plugins(made)["prefill-filter"] == ("role", {"allow": ["prefill", "both"]})
    config, _ = wired(made)
    assert config.epp is not None
    assert config.epp.split == "headers", "llm-d's sidecars do both legs"


def test_what_is_lost_is_said_with_its_weight() -> None:
    made = converted("sim-epp-gpu-config.yaml")
    assert "weight of 2 of 3 in the profile 'default'" in said(made)["gpu-utilization-scorer"]
    assert said(made)["gpu-utilization-filter"].startswith("missing")
    assert "weight of 3 of 5" in said(converted("thunderagent-config.yaml"))["thunder"]


def test_everything_else() -> None:
    made = converted("everything.yaml")
    config, _ = wired(made)
    [model] = config.models
    assert model.session.headers == ("x-conversation",)
    assert model.queue is not None
    assert (model.queue.max_wait, model.queue.max_requests, model.queue.max_bytes) == (90.0, 2000, 2**30)
    assert {one.name: one.type for one in config.plugins}[model.queue.order] == "fair-requests"
    made_of = plugins(made)
    assert made_of["label-selector-filter"][1]["expressions"] == [
        {"key": "tier", "operator": "NotIn", "values": ["spot"]},
        {"key": "gpu", "operator": "Exists"},
    ]
    assert made_of["by-label"] == ("labels", {"match": {"rack": ["r1", "r2"]}, "unlabelled": True})
    assert made_of["utilization-filter"] == ("utilization", {"waiting": 5, "kv": 0.9, "fallback": True})
    assert made_of["session-affinity-filter"] == ("session-pin", {"header": "x-pin", "leg": "prefill"})
    assert made_of["by-id"] == ("session-affinity", {"ttl": 600})
    assert made_of["active-request-scorer"] == ("active-requests", {"relative": "most", "idle": 2, "busy": 0.5})
    [handler] = made.values["handlers"]
    assert handler["parameters"] == {"profiles": ["decode", "prefill"], "default": "decode", "header": "x-phase"}
    assert config.epp is not None
    assert config.epp.fallbacks == 2
    assert model.limits.no_endpoint_timeout == 300.0
    assert said(made)["flowControl.enableEviction"].startswith("missing")


def test_kv_events_are_read_where_llm_d_reads_them() -> None:
    [model] = converted("epp-precise-prefix-cache-config.yaml").values["models"]
    assert model["endpoints"] == [{"url": "http://a:1", "kv_events": {"endpoint": "tcp://a:5557"}}]
    source = {"kubernetes": {"pool": "p"}}
    text = (DATA / "dp-kvcache-epp-config.yaml").read_text().replace("socketPort: 5557", "socketPort: 6000")
    made = convert(text, "f.yaml", [{"name": "m", "discover": [source]}])
    assert made.values["models"][0]["discover"] == [{**source, "kv_events": {"endpoint": "tcp://{host}:6000"}}]
    assert said(made)["zmqEndpoint"].startswith("near: engines that connect to tcp://0.0.0.0:5557")
    wired(made)
    alone = convert(text.replace("discoverPods: true", "discoverPods: false"), "f.yaml", MODELS)
    assert alone.values["models"] == MODELS
    sixth = convert(text, "f.yaml", [{"name": "m", "endpoints": [{"url": "http://[fd00::1]:8000"}]}])
    assert sixth.values["models"][0]["endpoints"][0]["kv_events"] == {"endpoint": "tcp://[fd00::1]:6000"}
    wired(sixth)


# Parameters


@pytest.mark.parametrize(
    ("parameters", "made"),
    [
        ("token-load-scorer", ("token-load", {"threshold": 4_194_304})),
        ("{type: token-load-scorer, parameters: {queueThresholdTokens: 1000}}", ("token-load", {"threshold": 1000})),
        ("no-hit-lru-scorer", ("no-hit-lru", {})),
        ("session-affinity-scorer", ("session-token", {})),
        ("lmetric-scorer", ("lmetric", {})),
        (
            "{type: by-label, parameters: {label: a, allowsNoLabel: true}}",
            ("labels", {"expressions": [{"key": "a", "operator": "DoesNotExist"}]}),
        ),
        (
            "{type: concurrency-detector, parameters: {maxConcurrency: 10, headroom: 0.25}}",
            ("utilization", {"requests": 12}),
        ),
        ("utilization-detector", ("utilization", {"waiting": 4, "kv": 0.8, "fallback": True})),
        (
            "{type: prefix-cache-affinity-filter, parameters: {ttftSource: latencyPredictor, maxTTFTPenaltyMs: 5000}}",
            ("prefix-affinity", {"threshold": 0.8, "penalty": 5.0, "exploration": 0.0, "tokens_per_second": None}),
        ),
    ],
)
def test_parameters_and_their_defaults_are_llm_d_s(parameters, made) -> None:
    entry = parameters if parameters.startswith("{") else f"{{type: {parameters}}}"
    name = entry.removeprefix("{type: ").rstrip("}").split(",")[0]
    profile = f"{{name: p, plugins: [{{pluginRef: {name}}}, {{pluginRef: queue-scorer}}]}}"
    result = of(f"plugins: [{entry}, {{type: queue-scorer}}]\nschedulingProfiles: [{profile}]\n")
    assert plugins(result)[name] == made
    wired(result)


def test_a_filter_by_session_id_is_a_scorer_above_all_others() -> None:
    made = of("plugins: [{type: session-affinity-filter, parameters: {strategy: session_id}}, {type: queue-scorer}]\n")
    assert scorers(made) == {"session-affinity-filter": 1000.0, "queue-scorer": 1.0}
    assert made.values["profiles"][0]["filters"] == ["healthy"]
    assert said(made)["session-affinity-filter"].startswith("near")


@pytest.mark.parametrize(
    ("entry", "filters"),
    [
        ("{type: label-selector-filter}", ["healthy"]),
        ("{type: prefix-cache-affinity-filter, parameters: {affinityThreshold: 0}}", ["healthy"]),
        ("{name: healthy, type: decode-filter}", ["healthy-kvgate", "healthy"]),
    ],
)
def test_filters_that_keep_all_are_left_out_and_names_stay(entry, filters) -> None:
    made = of(f"plugins: [{entry}, {{type: queue-scorer}}]\n")
    assert made.values["profiles"][0]["filters"] == filters
    wired(made)


def test_other_parameters_than_the_usual_ones_are_a_difference() -> None:
    usual = "plugins: [{type: metrics-data-source, parameters: {path: /metrics}}, {type: queue-scorer}]\n"
    assert said(of(usual))["metrics-data-source"].startswith("built in")
    assert said(of(usual.replace("/metrics", "/other")))["metrics-data-source"].startswith("near")


TWICE = """\
plugins: [{type: queue-scorer}, {type: decode-filter}]
schedulingProfiles:
- name: p
  plugins:
  - pluginRef: decode-filter
  - {pluginRef: queue-scorer, weight: 2}
  - pluginRef: decode-filter
  - pluginRef: queue-scorer
"""


def test_a_scorer_that_is_there_twice_counts_twice() -> None:
    made = of(TWICE)
    assert scorers(made) == {"queue-scorer": 3.0}
    assert made.values["profiles"][0]["filters"] == ["healthy", "decode-filter"]
    wired(made)


def test_a_dollar_sign_is_no_reference() -> None:
    made = of("plugins: [{type: by-label, parameters: {label: a, validValues: ['${HOME}']}}, {type: queue-scorer}]\n")
    config, _ = wired(made)
    assert config.plugins[1].parameters["match"] == {"a": ["${HOME}"]}


# Handlers

TWO = """\
schedulingProfiles:
- {name: prefill, plugins: [{pluginRef: queue-scorer}]}
- {name: decode, plugins: [{pluginRef: queue-scorer}]}
"""
BY_HEADER = "{type: header-profile-handler, parameters: {defaultProfile: x}}"


def handled(*entries: str, profiles: str = TWO) -> dict[str, Any]:
    made = of(f"plugins: [{', '.join(entries)}, {{type: queue-scorer}}]\n{profiles}")
    wired(made)
    [handler] = made.values["handlers"]
    return {"type": handler["type"], **handler["parameters"]}


DECIDED = "{type: disagg-profile-handler, parameters: {deciders: {prefill: d}}}"


@pytest.mark.parametrize(
    ("entries", "handler"),
    [
        ((DECIDED, "{name: d, type: always-disagg-pd-decider}"), {"threshold": 0}),
        ((DECIDED, "{name: d, type: prefix-based-pd-decider, parameters: {nonCachedTokens: 9}}"), {"threshold": 9}),
        ((DECIDED, "{name: d, type: prefix-based-pd-decider}"), None),
        (("{type: disagg-profile-handler}",), None),
        (
            (
                "{type: pd-profile-handler, parameters: {deciderPluginName: d}}",
                "{name: d, type: always-disagg-pd-decider}",
            ),
            {"threshold": 0},
        ),
        (
            (
                "{type: pd-profile-handler}",
                "{type: prefix-based-pd-decider, parameters: {nonCachedTokens: 9}}",
            ),
            {"threshold": 9},
        ),
        (
            (
                "{type: disagg-profile-handler}",
                "{type: prefix-based-pd-decider, parameters: {nonCachedTokens: 9}}",
            ),
            None,
        ),
    ],
)
def test_the_decider_is_a_threshold(entries, handler) -> None:
    whole = {"type": "single", "profile": "decode"}
    split = {"type": "prefill-decode", "prefill": "prefill", "decode": "decode"}
    assert handled(*entries) == (whole if handler is None else split | handler)


def test_a_default_decider_that_is_not_in_the_file_is_said() -> None:
    entries = "plugins: [{type: pd-profile-handler}, {type: queue-scorer}]\n"
    verdicts = [one.verdict for one in of(entries + TWO).findings if one.what == "pd-profile-handler"]
    assert "missing" in map(str, verdicts)


def test_a_least_length_of_prompts_is_left_out_and_said() -> None:
    decider = "{name: d, type: prefix-based-pd-decider, parameters: {nonCachedTokens: 9, promptTokens: 500}}"
    made = of(f"plugins: [{DECIDED}, {decider}, {{type: queue-scorer}}]\n{TWO}")
    assert (
        said(made)["promptTokens"] == "near: prompts of fewer than 500 tokens are split, too, from 9 uncached ones on"
    )
    assert "promptTokens" not in said(
        of(f"plugins: [{DECIDED}, {decider.replace('500', '9')}, {{type: queue-scorer}}]\n{TWO}")
    )


def test_one_profile_needs_no_header() -> None:
    one = "schedulingProfiles: [{name: p, plugins: [{pluginRef: queue-scorer}]}]\n"
    assert handled("{type: header-profile-handler}", profiles=one) == {"type": "single", "profile": "p"}


# What llm-d would not take


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "plugins:\n- type: queue-scorer\n- type: queu-scorer\n",
            "f.yaml:5: plugins[1].type: 'queu-scorer' is no plugin of llm-d that is known here; did you mean 'queue-sc",
        ),
        (
            "plugins:\n- type: token-load-scorer\n  parameters:\n    threshold: 5\n",
            "f.yaml:6: plugins[0].parameters.threshold: unknown key",
        ),
        (
            "plugins: [{type: queue-scorer, parameter: {}}]\n",
            "f.yaml:3: plugins[0].parameter: unknown key; did you mean 'parameters'?",
        ),
        ("plugin: []\n", "f.yaml:3: plugin: unknown key; did you mean 'plugins'?"),
        ("plugins: [{type: queue-scorer}, {type: queue-scorer}]\n", "there are two plugins 'queue-scorer'"),
        (
            "schedulingProfiles:\n- name: p\n  plugins:\n  - pluginRef: x\n",
            "f.yaml:6: schedulingProfiles[0].plugins[0].pluginRef: there is no plugin 'x'",
        ),
        ("featureGates: [flowControls]\n", "'flowControls' is no feature gate; did you mean 'flowControl'?"),
        (
            "plugins: [{type: single-profile-handler}, {type: disagg-profile-handler}]\n",
            "there are two profile handlers",
        ),
        (f"plugins: [{{type: queue-scorer}}]\n{TWO}", "2 profiles need a handler"),
        ("plugins: [{type: max-score-picker}, {type: random-picker}]\n", "has two pickers"),
        ("dataLayer: {sources: [{pluginRef: x}]}\n", "dataLayer.sources[0].pluginRef: there is no plugin 'x'"),
        (
            "plugins: [{name: d, type: file-discovery}]\ndataLayer: {discovery: {pluginRef: d}}\n",
            "f.yaml:3: plugins[0].parameters.path: this key is required",
        ),
        ("flowControl: {defaultRequestTTL: soon}\n", "flowControl.defaultRequestTTL: expected a duration"),
        ("flowControl: {defaultPriorityBand: {fairnessPolicyRef: x}}\n", "there is no plugin 'x'"),
        (
            f"plugins: [{{type: queue-scorer}}, {BY_HEADER}]\n{TWO}",
            "there is no profile 'x'",
        ),
        (f"plugins: [{{type: queue-scorer}}, {DECIDED}]\n{TWO}", "there is no plugin 'd'"),
        ("profileHandler: {type: x}\n", "f.yaml:3: profileHandler: unknown key"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(text, problem) -> None:
    with pytest.raises(ConfigError) as caught:
        of(text)
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    "text",
    ["", "plugins: []\n", "apiVersion: v1\nkind: ConfigMap\n", "apiVersion: llm-d.ai/v2\nkind: EndpointPickerConfig\n"],
)
def test_another_document_is_none(text) -> None:
    with pytest.raises(ConfigError, match=r"f\.yaml"):
        convert(text, "f.yaml", MODELS)


def test_without_its_gate_there_is_no_queue() -> None:
    made = of("flowControl: {maxRequests: 10}\n")
    assert "queue" not in made.values["models"][0]
    assert "queue" not in of("featureGates: [flowControl=false]\nflowControl: {maxRequests: 10}\n").values["models"][0]


REGISTERED = """
active-request-scorer agent-identity always-disagg-multimodal-decider always-disagg-pd-decider anthropic-parser
approx-prefix-cache-producer attribute-weight burst-prefix-cache-producer by-label by-label-selector
concurrency-detector context-length-aware core-metrics-extractor cross-replica-syncer data-parallel-profile-handler
dcgm-data-source
dcgm-extractor decode-filter disagg-headers-handler disagg-profile-handler disaggregatedset-rollout-screener
edf-ordering-policy encode-filter endpoint-attribute-filter endpoint-attribute-scorer endpoint-notification-source
fcfs-ordering-policy file-discovery global-strict-fairness-policy header-label-affinity-scorer header-profile-handler
inflight-load-producer k8s-notification-source kv-cache-utilization-scorer label-selector-filter latency-scorer
latency-slo-admitter lmetric-scorer load-aware-picker load-aware-scorer lora-affinity-scorer lora-load-state-scorer
lora-residency-filter max-score-picker metric-scorer metrics-data-source mm-embeddings-cache-producer
mm-embeddings-cache-scorer models-data-extractor models-data-source models-responder multicluster-file-discovery
no-hit-lru-scorer openai-parser p2p-source-producer passthrough-parser pd-profile-handler
precise-prefix-cache-producer precise-prefix-cache-scorer predicted-latency-producer prefill-filter
prefix-based-pd-decider prefix-cache-affinity-filter prefix-cache-scorer priority-holdback-policy probabilistic-admitter
program-aware-fairness queue-scorer random-picker request-attribute-reporter round-robin-fairness-policy
running-requests-size-scorer session-affinity-filter session-affinity-scorer session-id-producer sglanghttp-parser
single-profile-handler slo-deadline-ordering-policy slo-headroom-tier-filter soft-reflective-ceiling-policy
static-usage-limit-policy token-load-scorer token-producer topology-affinity-filter topology-affinity-scorer
topology-extractor utilization-detector utilization-filter vertexai-parser vllmgrpc-parser vllmhttp-parser
weighted-random-picker
"""
"""Types that llm-d's versions 0.7 to 1.0 have, old names included."""


def test_every_type_of_llm_d_has_a_verdict() -> None:
    assert [name for name in REGISTERED.split() if lookup(name) is None] == []
    assert lookup("no-such-plugin") is None


def test_every_verdict_is_consistent() -> None:
    for name, one in TYPES.items():
        assert (one.verdict is Verdict.MISSING) == (one.here == ""), name
        if one.slot in (Slot.FILTER, Slot.SCORER, Slot.PICKER):
            assert (one.make is None) == (one.verdict in (Verdict.MISSING, Verdict.BUILT_IN)), name
        assert one.verdict is not Verdict.NEAR or one.note, name
