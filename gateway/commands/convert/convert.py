"""``kvgate convert``: an EndpointPickerConfig of llm-d -> what plugins.yaml says, and what became of each plugin.

Pure: text in, plain values out. ``plugins_yaml.py`` writes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gateway.commands.convert.document import Document, Instance, Placed, ProfileGiven, read
from gateway.commands.convert.flow_control import flow_of
from gateway.commands.convert.handlers import handler_of
from gateway.commands.convert.kv_events import events_of, with_events
from gateway.commands.convert.types import DETECTORS, FILE_DISCOVERY, USUAL
from gateway.commands.convert.verdict import Finding, Made, Slot, Verdict

IN_PROFILES = (Slot.FILTER, Slot.SCORER, Slot.PICKER)

MAX_SCORE = "max-score-picker"
"""llm-d's picker where a profile names none."""


@dataclass(frozen=True, slots=True)
class Converted:
    """``values``: what plugins.yaml says, as plain values. ``findings``: what became of each plugin and setting, in the
    order of the file. ``finds``: it says itself where the engines are."""

    api_version: str
    values: Mapping[str, Any]
    findings: tuple[Finding, ...]
    finds: bool

    @property
    def losses(self) -> tuple[Finding, ...]:
        """Those that make kvgate decide otherwise than llm-d: what is missing, and what is only near."""
        return tuple(one for one in self.findings if one.verdict in (Verdict.MISSING, Verdict.NEAR))


def convert(text: str, file: str, models: Sequence[Mapping[str, Any]]) -> Converted:
    """``file``: its name in errors. ``models``: plain values of plugins.yaml's ``models``: llm-d's file has none of its
    own. What it says of models is added to each. Raises ConfigError, with the line of what is wrong."""
    document = read(text, file)
    handled, flow = handler_of(document), flow_of(document)
    wiring = _Wiring(document)
    profiles = [wiring.profile(one) for one in document.profiles if one.name in handled.profiles]
    of_model: dict[str, Any] = {}
    if wiring.session:
        of_model["session"] = {"headers": list(wiring.session)}
    if flow.queue is not None:
        of_model["limits"] = flow.limits
        of_model["queue"] = {"order": wiring.add("order", flow.order), **flow.queue}
    files = _files(document)
    if files:
        models = [{**model, "endpoints": [], "discover": files} for model in models]
    events, said = events_of(document)
    if events is not None:
        models = [with_events(model, events) for model in models]
    values = {
        "models": [{**model, **of_model} for model in models],
        "epp": {
            **({"fallbacks": wiring.fallbacks} if wiring.fallbacks else {}),
            **({"split": "headers"} if handled.type == "prefill-decode" else {}),  # the sidecars are there
        },
        "plugins": list(wiring.plugins.values()),
        "profiles": profiles,
        "handlers": [{"name": "default", "type": handled.type, "parameters": dict(handled.parameters)}],
    }
    left_out = [one for one in document.profiles if one.name not in handled.profiles]
    findings = [*wiring.findings, *handled.findings, *flow.findings, *said, *_others(document, wiring.seen, left_out)]
    findings.sort(key=lambda one: one.line or 0)
    return Converted(document.api_version, values, tuple(findings), bool(files))


@dataclass(slots=True)
class _Wiring:
    """Makes kvgate's plugins of those in profiles, each once. ``seen``: names of instances with a finding."""

    document: Document
    plugins: dict[str, dict[str, Any]] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)
    session: tuple[str, ...] = ()
    fallbacks: int = 0
    _made: dict[str, Made | None] = field(default_factory=dict)

    def add(self, wanted: str, kind: str) -> str:
        """A plugin that the file does not have; returns its name, which is ``wanted`` unless the file has that."""
        while wanted in self.document.instances:
            wanted += "-kvgate"
        self.plugins[wanted] = {"name": wanted, "type": kind}
        return wanted

    def profile(self, given: ProfileGiven) -> dict[str, Any]:
        # llm-d's candidates are pods that are ready: here that is a filter.
        filters, scorers, pickers = [self.add("healthy", "healthy")], dict[str, float](), []
        weights = [one.weight for one in given.plugins if one.instance.type.slot is Slot.SCORER]
        for placed in given.plugins:
            name, kind = placed.instance.name, placed.instance.type
            if kind.slot not in IN_PROFILES or (made := self._make(placed, given.name, sum(weights))) is None:
                continue
            match made.slot or kind.slot:
                case Slot.FILTER:
                    filters.append(name)
                case Slot.SCORER:  # one that is there twice counts twice
                    scorers[name] = scorers.get(name, 0.0) + placed.weight * made.weight
                case _:
                    pickers.append(name)
        if len(pickers) > 1:
            raise self.document.origin.error(given.path, f"the profile {given.name!r} has two pickers")
        return {
            "name": given.name,
            "filters": list(dict.fromkeys(filters)),
            "scorers": [{"plugin": name, "weight": weight} for name, weight in scorers.items()],
            "picker": (pickers or [self._picker()])[0],
        }

    def _picker(self) -> str:
        """llm-d takes any picker of the file's for a profile without one, else ``max-score-picker``."""
        for instance in self.document.instances.values():
            if instance.type.slot is Slot.PICKER and self._made_of(instance) is not None:
                return instance.name
        return self.add(MAX_SCORE, "max-score")

    def _make(self, placed: Placed, profile: str, total: float) -> Made | None:
        instance = placed.instance
        made = self._made_of(instance)
        if instance.type.make is None and instance.type.slot is Slot.SCORER:
            said = f"no score: its weight of {placed.weight:g} of {total:g} in the profile {profile!r} goes"
            here = _plain(instance.type.here or instance.type.note)
            self.findings.append(
                Finding(placed.line, instance.name, instance.type.verdict, f"{said}{f' ({here})' if here else ''}")
            )
            self.seen.add(instance.name)
        return made

    def _made_of(self, instance: Instance) -> Made | None:
        if instance.name in self._made:
            return self._made[instance.name]
        kind = instance.type
        made = None if kind.make is None else kind.make(instance.given)
        self._made[instance.name] = made
        if kind.make is None:
            if kind.slot is not Slot.SCORER:
                self._find(
                    instance, kind.verdict, _plain("; ".join(filter(None, (kind.here, kind.note)))) or "left out"
                )
            return None
        instance.given.end()
        if made is None:
            self._find(instance, kind.verdict, "with these parameters it changes nothing here, and is left out")
            return None
        plugin: dict[str, Any] = {"name": instance.name, "type": made.type}
        if made.parameters:
            plugin["parameters"] = dict(made.parameters)
        self.plugins[instance.name] = plugin
        self.session = made.session or self.session
        self.fallbacks = max(made.fallbacks, self.fallbacks)
        verdict = Verdict.NEAR if made.note else kind.verdict
        note = made.note or (_plain(kind.note) if verdict is Verdict.NEAR else "")
        self._find(instance, verdict, f"{made.type}{f': {note}' if note else ''}")
        return made

    def _find(self, instance: Instance, verdict: Verdict, said: str) -> None:
        self.seen.add(instance.name)
        self.findings.append(Finding(instance.line, instance.name, verdict, said))


def _files(document: Document) -> list[dict[str, Any]]:
    """Sources of endpoints, of which the file has one at most."""
    found = document.discovery
    if found is None or found.type.name != FILE_DISCOVERY:
        return []
    path = found.given.needed("path")
    found.given.flag("watchFile")
    found.given.end()
    return [{"file": path}]


def _others(document: Document, seen: set[str], left_out: Iterable[ProfileGiven]) -> Iterable[Finding]:
    """Of the plugins that are in no profile, and of profiles that are not run."""
    for profile in left_out:
        yield Finding(profile.line, f"profile {profile.name}", Verdict.MISSING, "no handler runs it, so it is left out")
    for instance in document.instances.values():
        kind = instance.type
        if instance.name in seen or kind.slot is Slot.HANDLER:
            continue
        if kind.slot is Slot.NONE or kind.name in DETECTORS:
            said = "; ".join(filter(None, (kind.here, kind.note))) or "left out"
            usual = kind.name in USUAL and instance.given.only(USUAL[kind.name])
            yield Finding(instance.line, instance.name, Verdict.BUILT_IN if usual else kind.verdict, _plain(said))
        else:
            yield Finding(instance.line, instance.name, kind.verdict, "in no profile that is run, so it is left out")


def _plain(markdown: str) -> str:
    return markdown.replace("`", "")
