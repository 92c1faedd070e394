"""Reads an EndpointPickerConfig, strictly: what it is made of, and where each part stands. No plugin is made here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from gateway.commands.convert.given import Given
from gateway.commands.convert.types import TYPES
from gateway.commands.convert.verdict import PluginType, Slot
from gateway.config.document import read_text
from gateway.config.origin import KeyPath, Origin, nearest
from gateway.errors import ConfigError

API_VERSIONS = ("llm-d.ai/v1", "llm-d.ai/v1alpha1", "inference.networking.x-k8s.io/v1alpha1")
KIND = "EndpointPickerConfig"
GATES = ("flowControl", "haPopulateNonLeaderDatastore", "dataLayer", "enableLegacyMetrics")

DEFAULT = "default"
"""The profile of a file that has none."""

USUAL = (("queue-scorer", 2.0), ("kv-cache-utilization-scorer", 2.0), ("prefix-cache-scorer", 3.0))
"""llm-d's scorers and weights where a file names neither plugins nor profiles."""


@dataclass(frozen=True, slots=True)
class Instance:
    """A named plugin: ``given`` are its parameters. ``line``: of its entry; None: the file has none."""

    name: str
    type: PluginType
    given: Given
    line: int | None


@dataclass(frozen=True, slots=True)
class Placed:
    """A plugin in a profile."""

    instance: Instance
    weight: float
    line: int | None


@dataclass(frozen=True, slots=True)
class ProfileGiven:
    name: str
    plugins: tuple[Placed, ...]
    path: KeyPath
    line: int | None


@dataclass(frozen=True, slots=True)
class Document:
    """``instances``: by name, in their order. ``gates``: the feature gates that are on. ``flow``: ``flowControl``.
    ``discovery``: the plugin that finds endpoints; None: those of the pool."""

    origin: Origin
    api_version: str
    instances: Mapping[str, Instance]
    profiles: tuple[ProfileGiven, ...]
    gates: frozenset[str]
    flow: Given
    discovery: Instance | None


def read(text: str, file: str) -> Document:
    """Raises ConfigError, which names the line of what is wrong. References (``${NAME}``) are not filled in, since
    llm-d knows none."""
    value, origin = read_text(text.replace("$", "$$"), file, {})
    top = Given(value, (), origin)
    if not top.text("apiVersion") or not top.text("kind"):
        raise ConfigError(f"{file}: no {KIND} of llm-d: it lacks apiVersion or kind")
    api_version = top.one_of("apiVersion", API_VERSIONS, "")
    top.one_of("kind", (KIND,), "")
    instances = _instances(top, origin)
    gates = _gates(top)
    profiles = _profiles(top, instances)
    discovery = _data_layer(top.within("dataLayer"), instances)
    flow = top.within("flowControl")
    old = top.within("saturationDetector")
    _refer(old, "pluginRef", instances)
    old.end()
    _parsers(top, instances)
    top.end()
    return Document(origin, api_version, instances, profiles, gates, flow, discovery)


def lookup(name: str) -> PluginType | None:
    """The plugin type of this name, or of the family that it belongs to."""
    if (found := TYPES.get(name)) is not None:
        return found
    return next((one for one in TYPES.values() if "*" in one.name and fnmatchcase(name, one.name)), None)


def _instances(top: Given, origin: Origin) -> dict[str, Instance]:
    instances: dict[str, Instance] = {}
    for each in top.each("plugins"):
        type_name = each.needed("type")
        name = each.text("name") or type_name
        plugin_type = lookup(type_name)
        if plugin_type is None:
            raise each.error(
                "type", f"{type_name!r} is no plugin of llm-d that is known here{nearest(type_name, TYPES)}"
            )
        if name in instances:
            raise each.error("name", f"there are two plugins {name!r}")
        instances[name] = Instance(name, plugin_type, each.within("parameters"), each.line)
        each.end()
    return instances


def _gates(top: Given) -> frozenset[str]:
    gates: dict[str, bool] = {}
    for entry in top.texts("featureGates"):
        name, _, value = entry.partition("=")
        if name not in GATES:
            raise top.error("featureGates", f"{name!r} is no feature gate{nearest(name, GATES)}")
        if value.lower() not in ("", "true", "false"):
            raise top.error("featureGates", f"{entry!r}: a gate is true or false")
        gates[name] = value.lower() != "false"
    return frozenset(name for name, on in gates.items() if on)


def _profiles(top: Given, instances: dict[str, Instance]) -> tuple[ProfileGiven, ...]:
    profiles: list[ProfileGiven] = []
    for each in top.each("schedulingProfiles"):
        name = each.needed("name")
        if any(one.name == name for one in profiles):
            raise each.error("name", f"there are two profiles {name!r}")
        placed = []
        for entry in each.each("plugins"):
            instance = _refer(entry, "pluginRef", instances, needed=True)
            assert instance is not None
            placed.append(Placed(instance, entry.number("weight", 1.0), entry.line))
            entry.end()
        profiles.append(ProfileGiven(name, tuple(placed), each.path, each.line))
        each.end()
    if profiles:
        return tuple(profiles)
    if not any(one.type.slot is not Slot.NONE and one.type.slot is not Slot.HANDLER for one in instances.values()):
        return (ProfileGiven(DEFAULT, tuple(_usual(instances, top)), (), None),)
    used = (one for one in instances.values() if one.type.slot in (Slot.FILTER, Slot.SCORER, Slot.PICKER))
    return (ProfileGiven(DEFAULT, tuple(Placed(one, 1.0, one.line) for one in used), (), None),)


def _usual(instances: dict[str, Instance], top: Given) -> list[Placed]:
    placed = []
    for name, weight in USUAL:
        made = Instance(name, TYPES[name], Given(None, (), top.origin), None)
        placed.append(Placed(instances.setdefault(name, made), weight, None))
    return placed


def _data_layer(given: Given, instances: Mapping[str, Instance]) -> Instance | None:
    """The plugin that finds endpoints. Of the rest, whether it is in order: what it says kvgate does by itself, or its
    plugins' verdicts say."""
    given.flag("injectDefaults", True)
    for source in given.each("sources"):
        _refer(source, "pluginRef", instances, needed=True)
        for extractor in source.each("extractors"):
            _refer(extractor, "pluginRef", instances, needed=True)
            extractor.end()
        source.end()
    discovery = _found_by(given.within("discovery"), instances)
    _found_by(given.within("peerDiscovery"), instances)
    given.text("crossReplicaSyncerPluginRef")
    given.duration("crossReplicaSyncInterval", 0.0)
    given.end()
    return discovery


def _found_by(given: Given, instances: Mapping[str, Instance]) -> Instance | None:
    """In its two forms: newer versions say what is found."""
    endpoints = given.within("endpoints")
    found = _refer(endpoints, "pluginRef", instances) or _refer(given, "pluginRef", instances)
    given.raw("pluginRef")
    endpoints.end()
    given.end()
    return found


def _parsers(top: Given, instances: Mapping[str, Instance]) -> None:
    handler = top.within("requestHandler")
    given = [*handler.each("parsers"), handler.within("parser"), top.within("parser")]
    handler.end()
    for each in given:
        _refer(each, "pluginRef", instances)
        each.end()


def _refer(given: Given, name: str, instances: Mapping[str, Instance], *, needed: bool = False) -> Instance | None:
    """The plugin that the key ``name`` refers to; None: it is not given."""
    ref = given.needed(name) if needed else given.text(name)
    if not ref:
        return None
    if ref not in instances:
        raise given.error(name, f"there is no plugin {ref!r}{nearest(ref, instances)}")
    return instances[ref]
