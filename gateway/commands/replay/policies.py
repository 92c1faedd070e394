"""The policies that a replay compares, by name or from a file: our configurations, and those that follow other routers.

Each is a text as in plugins.yaml, read by the gateway's own ``config``. So a replay compares what a gateway would be
configured with, and a text can be copied into a file. ``default`` is what an empty file configures.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gateway.config.load import load, loads
from gateway.config.origin import nearest
from gateway.config.settings import Config
from gateway.errors import ConfigError

MODELS: Mapping[str, Any] = {"models": [{"name": "replay", "endpoints": [{"url": "http://127.0.0.1:1"}]}]}
"""The models of a policy without any: a replay has endpoints of its own."""

DEFAULT = "default"


# As in the default, the filters that remove unusable endpoints come first in all of them.
_SAFE = """
- {name: healthy, type: healthy}
- {name: role, type: role, parameters: {allow: [decode, both]}}
"""


def _text(plugins: str, scorers: str = "[]", picker: str = "best", filters: str = "[healthy, role]") -> str:
    best = "- {name: best, type: max-score}\n" if picker == "best" else ""
    return (
        f"plugins:{_SAFE}{plugins.strip()}\n{best}"
        f"profiles:\n- name: default\n  filters: {filters}\n  scorers: {scorers}\n  picker: {picker}\n"
        "handlers:\n- {name: default, type: single, parameters: {profile: default}}\n"
    )


def _handler(name: str) -> str:
    return f"models: [{{name: replay, handler: {name}, endpoints: [{{url: 'http://127.0.0.1:1'}}]}}]\n"


POLICIES: Mapping[str, str] = {
    DEFAULT: "",
    # Decides by predicted seconds, or by the prompt's length, whether and where a prompt is computed apart.
    "prefill-decode": _handler("prefill-decode"),
    "prefill-decode-512": _handler("threshold")
    + "handlers: [{name: threshold, type: prefill-decode, parameters: {threshold: 512}}]\n",
    "round-robin": _text("- {name: next, type: round-robin}", picker="next"),
    "random": _text("- {name: any, type: random}", picker="any"),
    "weighted-random": _text(
        "- {name: load, type: load}\n- {name: any, type: weighted-random}", "[{plugin: load}]", "any"
    ),
    "least-requests": _text("- {name: active, type: active-requests}", "[{plugin: active}]"),
    "power-of-two": _text(
        "- {name: active, type: active-requests}\n- {name: two, type: power-of-two}", "[{plugin: active}]", "two"
    ),
    # Strict: a session stays on its first endpoint, whatever the load.
    "session-affinity": _text(
        "- {name: session, type: session-affinity}\n- {name: active, type: active-requests}",
        "[{plugin: session, weight: 10}, {plugin: active}]",
    ),
    # Enough of the prompt to distinguish conversations behind a system prompt of one of Mooncake's blocks.
    "bounded-hash": _text(
        "- {name: ring, type: bounded-hash, parameters: {prefix_tokens: 1024}}", filters="[healthy, role, ring]"
    ),
    "prefix-cache": _text("- {name: prefix, type: prefix-cache}", "[{plugin: prefix}]"),
    # The endpoint picker's weights since its v0.5; its queue score is scaled over the candidates.
    "llm-d": _text(
        """
- {name: prefix, type: prefix-cache}
- {name: queue, type: queue-depth, parameters: {relative: true}}
- {name: kv, type: kv-cache-utilization}
""",
        "[{plugin: prefix, weight: 3}, {plugin: queue, weight: 2}, {plugin: kv, weight: 2}]",
    ),
    "llm-d-sticky": _text(
        "- {name: sticky, type: prefix-affinity}\n- {name: tokens, type: token-load}",
        "[{plugin: tokens}]",
        filters="[healthy, role, sticky]",
    ),
    "sglang": _text("- {name: sglang, type: cache-aware}", filters="[healthy, role, sglang]"),
    # What its router does, with a threshold that fits engines with ten to twenty requests.
    "sglang-8": _text(
        "- {name: sglang, type: cache-aware, parameters: {balance_abs: 8}}", filters="[healthy, role, sglang]"
    ),
    "aibrix": _text("- {name: aibrix, type: aibrix-prefix}", filters="[healthy, role, aibrix]"),
    "dynamo-cost": _text("- {name: dynamo, type: dynamo-cost}", "[{plugin: dynamo}]"),
    "dynamo-cost-6": _text("- {name: dynamo, type: dynamo-cost, parameters: {prefill_scale: 6}}", "[{plugin: dynamo}]"),
    "lmetric": _text("- {name: lmetric, type: lmetric}", "[{plugin: lmetric}]"),
}


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy: a checked ``config`` whose plugins, profiles and handlers place the requests of its first model. Its
    models, endpoints and listeners are otherwise unused."""

    name: str
    config: Config

    @property
    def handler(self) -> str:
        return self.config.models[0].handler


def load_policy(name: str) -> Policy:
    """The policy with this name, or from the YAML file at this path (whose ``models`` may be left out).

    Raises ConfigError.
    """
    path = Path(name)
    if path.suffix in (".yaml", ".yml", ".json"):
        return Policy(path.stem, load(path, {}, MODELS))
    if name not in POLICIES:
        raise ConfigError(f"there is no policy {name!r}{nearest(name, POLICIES)}; a file's name ends in .yaml")
    return Policy(name, loads(POLICIES[name], {}, f"the policy {name!r}", MODELS))


def load_policies(names: str) -> list[Policy]:
    """Read policy names separated by commas, each once; ``all`` stands for all names. Raises ConfigError."""
    asked = [name.strip() for name in names.split(",") if name.strip()]
    if "all" in asked:
        asked = [*asked[: asked.index("all")], *POLICIES, *asked[asked.index("all") + 1 :]]
    found: dict[str, Policy] = {}
    for name in dict.fromkeys(asked):
        policy = load_policy(name)
        if policy.name in found:
            raise ConfigError(f"two policies have the name {policy.name!r}: rename a file")
        found[policy.name] = policy
    if not found:
        raise ConfigError("name at least one policy")
    return list(found.values())


def with_parameters(policy: Policy, values: Mapping[tuple[str, str], float]) -> Policy:
    """``policy`` with other numbers, by (plugin instance, parameter); ``weight`` is a scorer's in every profile."""
    config = policy.config
    changed: dict[str, dict[str, float]] = {plugin.name: {} for plugin in config.plugins}
    for (name, key), value in values.items():
        if key != "weight":
            changed[name][key] = value
    plugins = tuple(
        replace(plugin, parameters={**plugin.parameters, **changed[plugin.name]}) for plugin in config.plugins
    )
    profiles = tuple(
        replace(
            profile,
            scorers=tuple(
                replace(scorer, weight=values.get((scorer.plugin, "weight"), scorer.weight))
                for scorer in profile.scorers
            ),
        )
        for profile in config.profiles
    )
    return replace(policy, config=replace(config, plugins=plugins, profiles=profiles))
