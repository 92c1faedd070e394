"""Where llm-d reads the engines' KV events, and so kvgate: of its plugins that know exactly who holds which blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from gateway.commands.convert.document import Document
from gateway.commands.convert.verdict import Finding, Verdict

READERS = ("precise-prefix-cache-producer", "precise-prefix-cache-scorer")
PORT = 5557
"""llm-d's default, and that of vLLM's publisher."""


def events_of(document: Document) -> tuple[dict[str, Any] | None, list[Finding]]:
    """``kv_events`` of each endpoint, with ``{host}`` for its own; None: the file does not say them. Raises
    ConfigError."""
    reader = next((one for one in document.instances.values() if one.type.name in READERS), None)
    if reader is None:
        return None, []
    given = reader.given.within("kvEventsConfig")
    at, finds, findings = given.text("zmqEndpoint"), given.flag("discoverPods", True), []
    port = given.within("podDiscoveryConfig").integer("socketPort", PORT)
    topic = given.text("topicFilter")
    if at:
        said = f"engines that connect to {at}: give kv_events.listen, and each engine connects and a topic"
        findings.append(Finding(given.line, "zmqEndpoint", Verdict.NEAR, said))
    if not finds:
        return None, findings
    return {"endpoint": f"tcp://{{host}}:{port}"} | ({"topic": topic} if topic else {}), findings


def with_events(model: Mapping[str, Any], events: Mapping[str, Any]) -> dict[str, Any]:
    """The model's plain values, its engines' and sources' included."""
    made = dict(model)
    if "discover" in made:  # a source fills in the host by itself
        made["discover"] = [{**source, "kv_events": dict(events)} for source in made["discover"]]
    if made.get("endpoints"):
        made["endpoints"] = [{**one, "kv_events": _filled(events, one["url"])} for one in made["endpoints"]]
    return made


def _filled(events: Mapping[str, Any], url: str) -> dict[str, Any]:
    host = urlsplit(url).hostname or ""
    shown = f"[{host}]" if ":" in host else host
    return {**events, "endpoint": events["endpoint"].replace("{host}", shown)}
