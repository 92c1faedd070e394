"""A Service's EndpointSlices: which of its pods are ready, and on which ports. Roles and pods' labels are not there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from gateway.discovery.kubernetes.mirror import Collection
from gateway.discovery.kubernetes.places import Place

PATH = "/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
SERVICE = "kubernetes.io/service-name"
ZONE = "topology.kubernetes.io/zone"
"""The label of an endpoint whose slice says its zone: a node's label has this name."""


class _Conditions(msgspec.Struct):
    ready: bool | None = None


class _Pod(msgspec.Struct):
    kind: str = ""
    name: str = ""
    uid: str = ""


class _Endpoint(msgspec.Struct, rename="camel"):
    addresses: list[str]
    conditions: _Conditions = msgspec.field(default_factory=_Conditions)
    target_ref: _Pod | None = None
    zone: str | None = None


class _Port(msgspec.Struct):
    port: int | None = None
    protocol: str | None = None


class _Meta(msgspec.Struct):
    name: str
    uid: str = ""


class _Slice(msgspec.Struct, rename="camel"):
    metadata: _Meta
    address_type: str
    endpoints: list[_Endpoint] | None = None
    ports: list[_Port] | None = None


_SLICE = msgspec.json.Decoder(_Slice)


@dataclass(frozen=True, slots=True)
class Address:
    """Of a pod that is ready."""

    ip: str
    pod: str
    uid: str
    zone: str | None


@dataclass(frozen=True, slots=True)
class Slice:
    """``kind``: IPv4 or IPv6; of another kind nothing is used."""

    name: str
    uid: str
    kind: str
    ports: Sequence[int]
    addresses: Sequence[Address] = field(default_factory=tuple)


def view(raw: msgspec.Raw) -> Slice:
    """Raises msgspec.MsgspecError."""
    one = _SLICE.decode(raw)
    return Slice(
        name=one.metadata.name,
        uid=one.metadata.uid,
        kind=one.address_type,
        ports=sorted(p.port for p in one.ports or () if p.port is not None and p.protocol in (None, "TCP")),
        addresses=tuple(
            Address(endpoint.addresses[0], pod.name, pod.uid, endpoint.zone)
            for endpoint in one.endpoints or ()
            if endpoint.addresses and endpoint.conditions.ready is not False  # unknown counts as ready
            for pod in (endpoint.target_ref or _Pod(),)
        ),
    )


def of_service(name: str) -> Collection[Slice]:
    return Collection(PATH, view, labels=f"{SERVICE}={name}")


class ManyPorts(Exception):
    """The Service has several ports, and nothing says which are engines."""


def places(slices: Iterable[Slice], ports: Sequence[int]) -> list[Place]:
    """Where the ready ones take requests. A pod with addresses of both families is one place, by its IPv4 address.

    ``ports``: those that are engines; none: each slice has only one. Raises ManyPorts.
    """
    found: dict[str, Place] = {}
    for one in sorted(slices, key=lambda one: (one.kind, one.name)):
        if one.kind not in ("IPv4", "IPv6"):
            continue
        if not ports and len(one.ports) > 1:
            has = ", ".join(map(str, one.ports))
            raise ManyPorts(f"its pods have the ports {has}: name those that are engines as ports")
        here = [port for port in one.ports if port in ports] if ports else list(one.ports)
        for address in one.addresses:
            key = address.uid or address.ip
            labels: Mapping[str, str] = {} if address.zone is None else {ZONE: address.zone}
            before = found.get(key)
            if before is None:
                found[key] = Place(address.pod, address.uid, address.ip, tuple(here), labels=labels)
            elif before.ip == address.ip:  # pods that call a port differently are in slices of their own
                merged = tuple(sorted({*before.ports, *here}))
                found[key] = Place(address.pod, address.uid, address.ip, merged, labels=labels)
    return list(found.values())
