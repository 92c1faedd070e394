"""Pieces of Envoy's configuration that several of its parts have."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ipaddress import ip_address
from typing import Any

from gateway.commands.envoy.wanted import Address

Message = dict[str, Any]
"""A message of Envoy's API, as JSON has it."""

HTTP = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"


def typed(name: str, **fields: Any) -> Message:
    """A message in an ``Any``: Envoy reads its fields by the type's name."""
    return {"@type": f"type.googleapis.com/{name}", **fields}


def extension(name: str, type_name: str, **fields: Any) -> Message:
    return {"name": name, "typed_config": typed(type_name, **fields)}


def socket(address: Address) -> Message:
    return {"socket_address": {"address": address.host, "port_value": address.port}}


def seconds(value: float) -> str:
    """A duration, to the millisecond."""
    return f"{value:.3f}".rstrip("0").rstrip(".") + "s"


def is_ip(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def kind_of(hosts: Sequence[Address]) -> Message:
    """How a cluster finds its hosts: as all addresses of each name, looked up every 5 s, or as they are written."""
    if all(is_ip(one.host) for one in hosts):
        return {"type": "STATIC"}
    return {"type": "STRICT_DNS"}


MANY = 1_000_000
"""Requests: more than one machine can have under way."""


def breakers() -> Message:
    """Limits that nothing reaches: kvgate's own (``limits``) decide who waits and who is refused. By default there are
    1024 of each. Of an engine, one more gets 503. Of a picker, it goes on unasked where Envoy fails open."""
    names = ("max_connections", "max_pending_requests", "max_requests")
    return {"thresholds": [{"priority": "DEFAULT", **dict.fromkeys(names, MANY)}]}


def trusted(ca: str, names: Iterable[str]) -> Message:
    """A validation context: a certificate for one of ``names``, signed by an authority in the file ``ca``."""
    matchers = [
        {"san_type": "IP_ADDRESS" if is_ip(name) else "DNS", "matcher": {"exact": name}}
        for name in dict.fromkeys(names)
    ]
    return {"trusted_ca": {"filename": ca}, "match_typed_subject_alt_names": matchers}


def key_pair(certificate: str, key: str | None) -> Message:
    """A certificate and its key, which may be in the same file; Envoy needs them named both."""
    return {"certificate_chain": {"filename": certificate}, "private_key": {"filename": key or certificate}}
