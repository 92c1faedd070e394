"""Where a model's engines are found at run time: an entry of ``models[].discover``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Literal
from urllib.parse import urlsplit

from gateway.discovery.kubernetes_settings import KubernetesSettings
from gateway.fleet.settings import CostSettings, KvEventsSettings, TlsSettings

DNS_PORT = 53


@dataclass(frozen=True, slots=True)
class DnsSettings:
    """A name of DNS.

    ``port``: of the engine at each address that the name has (A, AAAA); None: the name has SRV records, which say the
    port. ``nameserver``: the IP address, with ``:PORT`` if that is not 53, of the only server to ask; None: the
    system's (/etc/resolv.conf). ``timeout``: seconds for an answer. ``least``, ``most``: seconds from one question to
    the next: an answer's TTL, but within these. ``empty_after``: seconds for which every answer must have been that
    there are no records until the last list is dropped.
    """

    name: str
    port: int | None = None
    nameserver: str | None = None
    timeout: float = 5.0
    least: float = 1.0
    most: float = 30.0
    empty_after: float = 60.0

    def __post_init__(self) -> None:
        if not self.name or not self.name.isascii() or any(char.isspace() for char in self.name):
            raise ValueError(f"name: {self.name!r} is no name of DNS")
        if self.port is not None and not 1 <= self.port <= 65535:
            raise ValueError("port must be in 1..65535")
        try:
            _ = self.server
        except ValueError:
            raise ValueError(f"nameserver: {self.nameserver!r} must be an IP address, or IP:PORT") from None
        if not self.timeout > 0:
            raise ValueError("timeout must be above 0 seconds")
        if not 0 < self.least <= self.most:
            raise ValueError("least must be above 0 seconds, and at most 'most'")
        if self.empty_after < 0:
            raise ValueError("empty_after must be at least 0 seconds")

    @property
    def server(self) -> tuple[str, int] | None:
        """The address and port of ``nameserver``. Raises ValueError if it has none."""
        if self.nameserver is None:
            return None
        address, port = self.nameserver, DNS_PORT
        if address.count(":") == 1 or address.startswith("["):
            parts = urlsplit(f"dns://{address}")
            address, port = parts.hostname or "", parts.port or DNS_PORT
        return str(ip_address(address)), port


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """A URL that answers with Prometheus' http_sd.

    ``interval``: seconds from one question to the next. ``timeout``: seconds for a whole answer. ``bearer``: sent as
    ``Authorization: Bearer``. ``tls``: for ``https``.
    """

    url: str
    interval: float = 10.0
    timeout: float = 5.0
    bearer: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    tls: TlsSettings | None = None

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.url)
            port = parts.port
        except ValueError:
            raise ValueError(f"url: {self.url!r} is none") from None
        if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
            raise ValueError(f"url: {self.url!r} must begin with http://HOST or https://HOST")
        if parts.username is not None or parts.password is not None:
            raise ValueError("url must not hold a user or a password (it is logged): use bearer, or headers")
        if self.tls is not None and parts.scheme != "https":
            raise ValueError(f"tls needs a url with https://, and {self.url!r} is another")
        if not (self.interval > 0 and self.timeout > 0):
            raise ValueError("interval and timeout must be above 0 seconds")
        if self.bearer is not None and not (self.bearer and all("!" <= char <= "~" for char in self.bearer)):
            raise ValueError("bearer must be printable ASCII without spaces: it is sent in a header")
        for name, value in self.headers.items():
            if not name or not name.isascii() or not (name + value).isprintable() or not value.isascii():
                raise ValueError("headers must be printable ASCII")


KINDS = ("file", "dns", "http", "kubernetes")
"""The keys of which an entry has exactly one: what kind of source it is."""


@dataclass(frozen=True, slots=True)
class DiscoverSettings:
    """A source of endpoints, and what those found there have where the source does not say it.

    ``file``: a file's path, or a pattern of paths, with ``*``. ``scheme``: of their URLs. ``kv_events``: in
    ``endpoint``, ``replay`` and ``topic``, ``{host}`` and ``{port}`` are those of each endpoint's URL. All others are
    as in ``EndpointSettings``.
    """

    file: str | None = None
    dns: DnsSettings | None = None
    http: HttpSettings | None = None
    kubernetes: KubernetesSettings | None = None
    role: Literal["prefill", "decode", "both"] = "both"
    labels: Mapping[str, str] = field(default_factory=dict)
    api_key: str | None = field(default=None, repr=False)
    scheme: Literal["http", "https"] = "http"
    tls: TlsSettings | None = None
    ranks: int | None = None
    kv_events: KvEventsSettings = field(default_factory=KvEventsSettings)
    cost: CostSettings = field(default_factory=CostSettings)

    def __post_init__(self) -> None:
        given = [kind for kind in KINDS if getattr(self, kind) is not None]
        if len(given) != 1:
            has = " and ".join(given) or "none"
            raise ValueError(f"a source has exactly one of {', '.join(KINDS)}; this one has {has}")
        if self.file == "":
            raise ValueError("file must not be empty")
        if self.tls is not None and self.scheme != "https":
            raise ValueError("tls needs scheme: https")

    @property
    def secrets(self) -> list[str]:
        """What must not appear in any log line."""
        sent = [] if self.http is None else [self.http.bearer, *self.http.headers.values()]
        return [secret for secret in (self.api_key, *sent) if secret]

    @property
    def label(self) -> str:
        """What it is called in logs, in metrics and by the admin routes: its kind and where it looks."""
        if self.dns is not None:
            return f"dns {self.dns.name}" + ("" if self.dns.port is None else f":{self.dns.port}")
        if self.http is not None:
            return f"http {self.http.url}"
        if self.kubernetes is not None:
            return self.kubernetes.label
        return f"file {self.file}"
