"""What counts of a pod: whether it is ready, where it is, its role, and on which ports it has engines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from gateway.discovery.kubernetes.mirror import Collection
from gateway.discovery.kubernetes.places import Place

PATH = "/api/v1/namespaces/{namespace}/pods"

ROLE = "llm-d.ai/role"
ROLES: Mapping[str, str | None] = {
    "prefill": "prefill",
    "decode": "decode",
    "prefill-decode": "both",
    "both": "both",
    "encode": None,
    "encode-prefill": "prefill",
    "encode-prefill-decode": "both",
}
"""What a pod's label says, and the endpoint's role; None: it is no endpoint of ours, since it only encodes."""

ACTIVE_PORTS = ("llm-d.ai/active-ports", "inference.networking.k8s.io/active-ports")
"""The annotation that says which of a pool's ports a pod has engines on; the second name is the older one."""


class _Condition(msgspec.Struct):
    type: str
    status: str


class _Status(msgspec.Struct):
    phase: str = ""
    ip: str = msgspec.field(default="", name="podIP")
    conditions: list[_Condition] | None = None


class _Meta(msgspec.Struct, rename="camel"):
    name: str
    uid: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None


class _Pod(msgspec.Struct):
    metadata: _Meta
    status: _Status = msgspec.field(default_factory=_Status)


_POD = msgspec.json.Decoder(_Pod)


@dataclass(frozen=True, slots=True)
class Pod:
    """``ready``: it takes requests: it is ready, has an address and is not being deleted. ``active``: what its
    annotation says of its ports; None: it has none. ``made``: when it was created."""

    name: str
    uid: str
    ready: bool
    ip: str
    active: str | None = None
    made: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)


def view(raw: msgspec.Raw) -> Pod:
    """Raises msgspec.MsgspecError."""
    pod = _POD.decode(raw)
    meta, status = pod.metadata, pod.status
    annotations = meta.annotations or {}
    ready = any(one.type == "Ready" and one.status == "True" for one in status.conditions or ())
    return Pod(
        name=meta.name,
        uid=meta.uid,
        # One that has ended keeps its address, which another may have by now.
        ready=ready and bool(status.ip) and not meta.deletion_timestamp and status.phase not in ("Succeeded", "Failed"),
        ip=status.ip,
        active=next((annotations[name] for name in ACTIVE_PORTS if name in annotations), None),
        made=meta.creation_timestamp or "",
        labels=meta.labels or {},
    )


def selected(labels: str) -> Collection[Pod]:
    return Collection(PATH, view, labels=labels)


def places(pods: Iterable[Pod], ports: Sequence[int]) -> tuple[list[Place], list[str]]:
    """Where the ready ones take requests, and what is wrong, in words."""
    found, wrong = [], []
    for pod in pods:
        if not pod.ready:
            continue
        label = pod.labels.get(ROLE)
        if label is not None and label not in ROLES:
            wrong.append(f"pod {pod.name}: its label {ROLE} is {label!r}, and not one of {', '.join(ROLES)}")
            continue
        role = None if label is None else ROLES[label]
        if label is not None and role is None:
            continue
        try:
            active = ports if pod.active is None else _active(pod.active, ports)
        except ValueError:
            wrong.append(f"pod {pod.name}: its annotation for active ports is {pod.active!r}, and no list of ports")
            continue
        found.append(Place(pod.name, pod.uid, pod.ip, active, role, pod.labels, pod.made))
    return found, wrong


def _active(said: str, ports: Sequence[int]) -> list[int]:
    """Raises ValueError."""
    named = {int(one) for one in said.split(",") if one.strip()}
    return [port for port in ports if port in named]
