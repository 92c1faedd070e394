"""``kvgate check``: warns of configurations that are valid and will disappoint: of models whose prefill is split off,
and of engines that connect to the gateway.

It takes two steps: what the file alone shows, and what the engines of models with a split prefill report. An engine
that cannot be reached is a warning; no check fails. Each warning names the model, the endpoint and the remedy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address

from filters.role import RoleFilter
from gateway.commands.check_sharing import of_sharing
from gateway.commands.check_tenants import of_tenants
from gateway.commands.interview import EngineReport, Interviews, ask
from gateway.config.settings import Config, ModelSettings
from gateway.fleet.engine_client import ProbeFailed
from gateway.fleet.settings import EndpointSettings
from gateway.framework import Clock, Role
from gateway.scheduling.prefill_decode import NEVER_WHOLE, PrefillDecode
from gateway.scheduling.scheduler import Scheduler
from gateway.scheduling.single import Single
from gateway.tokens.tokenizer import ModelTokens
from gateway.workers.cores import worker_count

VLLM_CONNECTORS = {
    "nixl": ("NixlConnector", "NixlPullConnector", "NixlPushConnector", "MultiConnector"),
    "mooncake": ("MooncakeConnector", "MultiConnector"),
}
"""The vLLM 0.32 connectors that speak each protocol. A shared storage has no entry: many connectors can use one."""

NIXL_FLAG = """--kv-transfer-config '{"kv_connector":"NixlConnector","kv_role":"kv_both"}'"""


@dataclass(frozen=True, slots=True)
class Split:
    """A model whose handler plans two legs."""

    model: ModelSettings
    rules: PrefillDecode.Parameters

    @property
    def prefilling(self) -> list[EndpointSettings]:
        return [one for one in self.model.endpoints if one.role != "decode"]

    @property
    def decoding(self) -> list[EndpointSettings]:
        return [one for one in self.model.endpoints if one.role != "prefill"]

    @property
    def sides(self) -> tuple[tuple[list[EndpointSettings], list[EndpointSettings], str], ...]:
        """The endpoints of each role, the endpoints that they need as partners, and what happens to one without a
        partner."""
        return (
            (
                [one for one in self.prefilling if one.role == "prefill"],
                self.decoding,
                "will never prefill, since no decode endpoint fits",
            ),
            (self.decoding, self.prefilling, "will serve every request whole, since no prefill endpoint fits"),
        )

    def partners(self, one: EndpointSettings, others: Iterable[EndpointSettings]) -> list[EndpointSettings]:
        """The endpoints among ``others`` that the configuration lets ``one`` be paired with."""
        return [
            other
            for other in others
            if other.url != one.url and all(other.labels.get(k) == one.labels.get(k) for k in self.rules.same)
        ]


async def check(
    config: Config, scheduler: Scheduler, clock: Clock, *, probe: bool, tokens: Mapping[str, ModelTokens] | None = None
) -> tuple[list[str], list[str]]:
    """Return the warnings and the notes. The engines of all models are asked at the same time.

    ``probe``: let each prefill endpoint compute a few tokens as well. ``tokens``: the loaded tokenizers, by model;
    None: prompts are not checked.
    """
    async with Interviews(clock) as interviews:
        found = await asyncio.gather(*(_of_model(interviews, scheduler, model, probe=probe) for model in config.models))
    of_replicas, notes = await of_sharing(config)
    warnings = [*_of_listening(config), *_of_picker(config, scheduler), *await of_tenants(config, clock), *of_replicas]
    notes = [*of_workers(config), *notes]
    for model, (its_warnings, its_notes) in zip(config.models, found, strict=True):
        warnings += [f"model {model.name}: {warning}" for warning in its_warnings]
        notes += [f"model {model.name}: {note}" for note in its_notes]
        if tokens is not None:
            warnings += [f"model {model.name}: {warning}" for warning in of_tokens(tokens[model.name])]
            notes.append(f"model {model.name}: its tokens are {tokens[model.name].state}")
    return warnings, notes


async def _of_model(
    interviews: Interviews, scheduler: Scheduler, model: ModelSettings, *, probe: bool
) -> tuple[Sequence[str], Sequence[str]]:
    handler = scheduler.handlers[model.handler]
    if not isinstance(handler, PrefillDecode):
        return list(_of_whole(model, scheduler)), ()
    split = Split(model, handler.parameters)
    probed = split.prefilling if probe and split.rules.connector == "nixl" else []
    reports = await asyncio.gather(*(ask(interviews, model, one, probe=one in probed) for one in model.endpoints))
    warnings = [*_of_split(split), *_of_engines(split, reports)]
    if probed:
        return warnings, [
            f"probed {', '.join(map(_name, probed))}; a block or two are held there until their lease ends"
        ]
    if probe and split.rules.connector != "nixl":
        return warnings, ["not probed: only NIXL's prefill says where its KV can be fetched"]
    return warnings, ()


def of_tokens(tokens: ModelTokens) -> Iterator[str]:
    """Yield a warning for each form of prompt that will be estimated, with the remedy."""
    if not tokens.configured:
        yield (
            "it has no tokenizer, so that all its prompts are estimated and hits in the engines' caches are not known: "
            "set tokenizer to the folder or hub id that the engines were started with"
        )
    for form, one in tokens.obstacles.items():
        if one.engine_knows and tokens.asks_engines:
            continue
        yield f"its {form} are estimated, since {one.said}: {one.remedy}"


def of_workers(config: Config) -> Iterator[str]:
    """Yield how many processes serve on this machine, and what each has for itself, where there are several."""
    if (count := worker_count(config.listen.workers)) > 1:
        yield (
            f"{count} workers serve, under a parent; each allows its part of listen.max_held and models[].limits, and "
            "remembers models[].kv_cache.max_blocks for itself"
        )


def _of_picker(config: Config, scheduler: Scheduler) -> Iterator[str]:
    if config.epp is None or config.epp.split is not None:
        return
    for model in config.models:
        handler = scheduler.handlers[model.handler]
        if isinstance(handler, PrefillDecode) and handler.parameters.connector in NEVER_WHOLE:
            yield (
                f"model {model.name}: the picker sends each request to one engine, as epp.split is null, and engines "
                f"with the connector {handler.parameters.connector} generate nothing alone: set epp.split to headers, "
                "or to the address of a proxy of kvgate"
            )


def _of_listening(config: Config) -> Iterator[str]:
    listen = config.kv_events.listen
    named: dict[str, str] = {}
    if listen is None:
        return
    connecting = [(model, one) for model in config.models for one in model.endpoints if one.kv_events.connects]
    if not connecting:
        yield f"kv_events.listen is {listen}, but no endpoint has kv_events.connects: events that arrive are not used"
    for model, one in connecting:
        topic = one.kv_topic(model.name)
        if named.setdefault(one.url.rstrip("/"), topic) != topic:
            yield (
                f"model {model.name}: {_name(one)} shall send its KV events with the topic {topic!r}, and for another "
                f"model with {named[one.url.rstrip('/')]!r}, but has one: give it a kv_events.topic in both"
            )


def _of_whole(model: ModelSettings, scheduler: Scheduler) -> Iterator[str]:
    """Yield the warnings of a model whose handler never splits off a prefill. Handlers of third parties are not
    judged."""
    handler = scheduler.handlers[model.handler]
    if not isinstance(handler, Single):
        return
    filters = [plugin for name in handler.profiles for _, plugin in scheduler.profiles[name].filters]
    if not any(isinstance(one, RoleFilter) and Role.PREFILL not in one.allowed for one in filters):
        return
    if idle := [_name(one) for one in model.endpoints if one.role == "prefill"]:
        yield (
            f"{', '.join(idle)} will idle: the handler {model.handler!r} never splits off a prefill; "
            "give the model the handler prefill-decode, or the endpoint the role both"
        )


def _of_split(split: Split) -> Iterator[str]:
    model, rules = split.model, split.rules
    if not split.prefilling:
        yield "no endpoint may prefill, so that every request is served whole: give one the role prefill"
    elif not split.decoding:
        yield "no endpoint may decode, so that every request is refused with 503: give one the role decode"
    elif len(model.endpoints) == 1:
        yield (
            f"{_name(model.endpoints[0])} would have to prefill and decode, but no engine hands over to itself: "
            "add an endpoint, or use a handler that never splits"
        )
    else:
        yield from _of_labels(split)
    for key, labels in (("same", rules.same), ("prefer", rules.prefer)):
        for label in labels:
            if not any(label in one.labels for one in model.endpoints):
                yield f"no endpoint has the label {label!r}, which {key!r} of its handler names: give it to some"
    if model.tokenizer is None and rules.by_cost:
        yield (
            "without a tokenizer the handler takes a quarter of the prompt's bytes for its tokens, from which it "
            "predicts what a prefill of its own would save: set tokenizer"
        )
    elif model.tokenizer is None and rules.tokens > 0:
        yield (
            f"without a tokenizer the handler's threshold of {rules.tokens} tokens is compared with a quarter of "
            "the prompt's bytes: set tokenizer"
        )


def _of_labels(split: Split) -> Iterator[str]:
    if not split.rules.same:
        return
    for ones, others, lack in split.sides:
        for one in ones:
            if not split.partners(one, others):
                labels = ", ".join(f"{label}={one.labels.get(label, '')}" for label in split.rules.same)
                yield f"{_name(one)} {lack}: none has {labels}, as 'same' of its handler asks"


def _of_engines(split: Split, reports: Sequence[EngineReport]) -> Iterator[str]:
    for one in reports:
        if one.unreachable:
            yield (
                f"{_name(one.endpoint)} cannot be reached ({one.why}), so it is not checked: start it, and check again"
            )
    yield from _of_versions(split, {one.endpoint.url: one for one in reports if not one.unreachable})
    for one in reports:
        if not one.unreachable:
            yield from (f"{_name(one.endpoint)}: {warning}" for warning in _of_engine(split, one))


def _of_versions(split: Split, reports: Mapping[str, EngineReport]) -> Iterator[str]:
    for ones, others, lack in split.sides:
        for one in ones:
            partners = split.partners(one, others)
            if not partners or one.url not in reports or any(other.url not in reports for other in partners):
                continue
            version, versions = reports[one.url].version, {reports[other.url].version for other in partners}
            if version not in versions:
                shown = ", ".join(sorted(map(_version, versions)))
                yield (
                    f"{_name(one)} {lack}: it runs {_version(version)}, and those {shown}; KV is handed over within "
                    "one version only, so upgrade one side"
                )


def _of_engine(split: Split, one: EngineReport) -> Iterator[str]:
    if one.late:
        yield (
            f"it did not answer {' and '.join(one.late)} in time, so this part is not checked: check again when it is "
            "less busy"
        )
    yield from _of_connector(split, one)
    if one.endpoint.role != "decode" and split.rules.connector == "nixl":
        yield from _of_side_channel(one)
    if one.endpoint.role != "prefill" and one.transfer.get("kv_load_failure_policy") == "fail":
        yield (
            "its kv_load_failure_policy is 'fail', vLLM's default: where KV cannot be fetched it refuses the request, "
            "and kvgate sends it a second time, without; with 'recompute' the engine computes the prompt itself at once"
        )


def _of_connector(split: Split, one: EngineReport) -> Iterator[str]:
    connector, role = split.rules.connector, one.endpoint.role
    fitting = VLLM_CONNECTORS.get(connector, ())
    running, kv_role = one.transfer.get("kv_connector"), one.transfer.get("kv_role")
    if one.configured and (running is None or (fitting and running not in fitting)):
        names = f" ({', '.join(fitting)})" if fitting else ""
        yield (
            f"its KV connector is {running or 'none'}, and that of the model's handler {connector}{names}: "
            "start it with the --kv-transfer-config for that"
        )
    elif not one.configured and connector == "nixl" and one.metrics is not None and b"vllm:nixl_" not in one.metrics:
        yield f"it has no KV connector: its metrics have no vllm:nixl_*: start it with {NIXL_FLAG}"
    fits = {"kv_producer": "prefill", "kv_consumer": "decode"}
    if fits.get(str(kv_role), role) != role:
        yield f"its kv_role is {kv_role} and its role here {role}: start it with kv_both, or change the role"


def _of_side_channel(one: EngineReport) -> Iterator[str]:
    probed = one.probed
    if isinstance(probed, ProbeFailed):
        yield f"it did not answer a probe ({probed.reason}): no separate prefill will work either"
        return
    if probed is not None and "remote_host" not in probed:
        yield f"its answer to a probe has no kv_transfer_params, as without a KV connector: start it with {NIXL_FLAG}"
        return
    host = one.side_channel if probed is None else str(probed["remote_host"])
    if host is not None and _is_local(host) and not _is_local(one.endpoint.host):
        yield (
            f"it gives decode engines the address {host!r} to fetch its KV from, which on other hosts is the host "
            "itself: set VLLM_NIXL_SIDE_CHANNEL_HOST to an address that they can reach"
        )


def _is_local(host: str) -> bool:
    """Whether ``host`` is a name for the machine that resolves it."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost" or host.lower().endswith(".localhost")


def _version(version: str | None) -> str:
    return version or "an unknown version"


def _name(endpoint: EndpointSettings) -> str:
    return endpoint.label
