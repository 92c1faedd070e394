"""InferencePools: which pods they select, and on which ports."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from gateway.discovery.kubernetes.mirror import Collection

PATH = "/apis/inference.networking.k8s.io/v1/namespaces/{namespace}/inferencepools"


class _Meta(msgspec.Struct):
    name: str
    uid: str = ""


class _Selector(msgspec.Struct, rename="camel"):
    match_labels: dict[str, str] | None = None


class _Port(msgspec.Struct):
    number: int


class _Spec(msgspec.Struct, rename="camel"):
    selector: _Selector = msgspec.field(default_factory=_Selector)
    target_ports: list[_Port] | None = None


class _Pool(msgspec.Struct):
    metadata: _Meta
    spec: _Spec


_POOL = msgspec.json.Decoder(_Pool)


@dataclass(frozen=True, slots=True)
class Pool:
    """``labels``: the selector of its pods; empty: it has none, and so no pods."""

    name: str
    uid: str
    labels: str
    ports: tuple[int, ...]


def view(raw: msgspec.Raw) -> Pool:
    """Raises msgspec.MsgspecError."""
    pool = _POOL.decode(raw)
    labels = pool.spec.selector.match_labels or {}
    return Pool(
        pool.metadata.name,
        pool.metadata.uid,
        ",".join(f"{key}={value}" for key, value in sorted(labels.items())),
        tuple(port.number for port in pool.spec.target_ports or ()),
    )


def named(name: str) -> Collection[Pool]:
    """Only it: a role may be limited to it then."""
    return Collection(PATH, view, fields=f"metadata.name={name}")
