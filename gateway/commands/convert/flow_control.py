"""llm-d's flow control, which is a queue of the pool: kvgate's is one of each model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from gateway.commands.convert.document import Document, lookup
from gateway.commands.convert.given import Given
from gateway.commands.convert.verdict import Finding, Verdict
from gateway.config.origin import nearest

GATE = "flowControl"
TTL = 60.0
"""llm-d's default: seconds that a request may wait in its queue."""
FOR_EVER = 3600.0
"""Seconds, for what may wait for ever: kvgate's requests wait an hour at most by default (``timeouts.total``)."""
LARGEST_BAND = 5000
"""llm-d's default: requests that may wait in one band."""

ORDERS = {
    "round-robin-fairness-policy": "fair-requests",
    "program-aware-fairness": "fair-tokens",
    "edf-ordering-policy": "earliest-deadline",
    "slo-deadline-ordering-policy": "earliest-deadline",
}
FIRST_COME = "first-come"


@dataclass(frozen=True, slots=True)
class Flow:
    """``queue``: of each model, but for its order; None: there is none. ``order``: the type of the plugin for that.
    ``limits``: of each model."""

    queue: dict[str, Any] | None = None
    limits: dict[str, Any] = field(default_factory=dict)
    order: str = ""
    findings: tuple[Finding, ...] = field(default=())


def flow_of(document: Document) -> Flow:
    """Raises ConfigError for what llm-d would not take."""
    given = document.flow
    most, size = given.quantity("maxRequests"), given.quantity("maxBytes")
    wait = given.duration("defaultRequestTTL", TTL) or FOR_EVER
    stand_by = given.duration("noEndpointRequestTTL", TTL) or FOR_EVER
    order, bands = _band(document, given.within("defaultPriorityBand"))
    _band(document, given.within("defaultNegativePriorityBand"))
    orders = [_band(document, band)[0] for band in given.each("priorityBands")]
    _ref(document, given, "usageLimitPolicyPluginRef")
    detector = given.within("saturationDetector")
    _ref(document, detector, "pluginRef")
    detector.end()
    evicts = given.flag("enableEviction")
    given.end()
    line = given.line
    if GATE not in document.gates:
        said = f"without the feature gate {GATE} llm-d has no queue: neither has kvgate (models[].queue)"
        return Flow(findings=(Finding(line, GATE, Verdict.SAME, said),) if given.path and line is not None else ())
    most = most or bands or LARGEST_BAND
    queue = {"max_wait": wait, "max_requests": most, "per_tenant": most}
    if size:
        queue["max_bytes"] = size
    return Flow(queue, {"no_endpoint_timeout": stand_by}, order, tuple(_said(line, order, orders, evicts)))


def _said(line: int | None, order: str, orders: list[str], evicts: bool) -> Iterator[Finding]:
    yield Finding(
        line, GATE, Verdict.NEAR, f"models[].queue with the order {order}: one queue a model, by its engines' room"
    )
    if any(other != order for other in orders):
        yield Finding(
            line, "flowControl.priorityBands", Verdict.NEAR, f"all bands have the order {order}; bands need no list"
        )
    if evicts:
        yield Finding(line, "flowControl.enableEviction", Verdict.MISSING, "what runs is not evicted")


def _band(document: Document, given: Given) -> tuple[str, int]:
    """The type of plugin that orders requests as this band does, and how many may wait in it."""
    given.integer("priority", 0, least=-(2**31))
    given.quantity("maxBytes")
    most = given.quantity("maxRequests")
    fairness = _ref(document, given, "fairnessPolicyRef")
    ordering = _ref(document, given, "orderingPolicyRef")
    given.end()
    return ORDERS.get(fairness) or ORDERS.get(ordering) or FIRST_COME, most


def _ref(document: Document, given: Given, name: str) -> str:
    """The type of the plugin that is referred to: one of the file's, or a type that llm-d makes by itself."""
    ref = given.text(name)
    if not ref:
        return ""
    instance = document.instances.get(ref)
    if instance is None and lookup(ref) is None:
        raise given.error(name, f"there is no plugin {ref!r}{nearest(ref, document.instances)}")
    return ref if instance is None else instance.type.name
