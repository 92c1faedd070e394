"""What an engine's URL means: which engine it is, and how it is connected to.

Rules: two spellings of a URL are one ``Location``. Endpoints with the same TLS settings share one context, so that two
addresses are equal where a connection to the one could serve the other.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, replace
from functools import partial
from typing import Self
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

from gateway.errors import ConfigError
from gateway.fleet.settings import EndpointSettings, TlsSettings
from gateway.framework.tls import Pair, Renewed, Unusable, trust

DEFAULT_PORTS = {"http": 80, "https": 443, "unix": 0}

ALPN = "http/1.1"
"""The one protocol that we speak: an engine behind a proxy that prefers HTTP/2 must not choose that."""


@dataclass(frozen=True, slots=True)
class Location:
    """``scheme`` is ``http``, ``https`` or ``unix``. ``host`` is in lower case and without brackets, and empty where
    there is ``socket``, the path of a Unix socket."""

    scheme: str
    host: str
    port: int
    socket: str | None = None

    @classmethod
    def of(cls, url: str) -> Self:
        parts = urlsplit(url)
        if parts.scheme == "unix":
            return cls("unix", "", 0, parts.path)
        host, percent, zone = (parts.hostname or "").partition("%")
        return cls(parts.scheme, host.lower() + percent + zone, parts.port or DEFAULT_PORTS[parts.scheme])

    @property
    def authority(self) -> str:
        """``HOST:PORT``, an IPv6 address in brackets, or ``unix:PATH``: an engine's name where none is given."""
        if self.socket is not None:
            return f"unix:{self.socket}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """Without a trailing slash, and without a port that goes without saying."""
        if self.socket is not None:
            return f"unix://{self.socket}"
        authority = self.authority
        if self.port == DEFAULT_PORTS[self.scheme]:
            authority = authority.rpartition(":")[0]
        return f"{self.scheme}://{authority}"


@dataclass(frozen=True, slots=True)
class Address:
    """Where an engine listens, ready to connect to. Equal addresses may share their connections.

    ``host``: name or IP address without brackets; empty for a Unix socket. ``socket``: the path of one. ``ssl``: None
    for plain HTTP. ``server_name``: for SNI, and the name that the certificate must have; None for plain HTTP.
    ``authority``: the Host header: host, port where it is not the scheme's own, IPv6 in brackets; ``localhost`` for a
    Unix socket.
    """

    host: str
    port: int
    socket: str | None
    ssl: ssl.SSLContext | None
    server_name: str | None
    authority: str

    @classmethod
    def of(cls, settings: EndpointSettings, contexts: Contexts) -> Self:
        """Raises ConfigError if a file of its TLS settings cannot be used."""
        location = Location.of(settings.url)
        if location.socket is not None:
            return cls("", 0, location.socket, None, None, "localhost")
        host = location.host if location.host.isascii() else location.host.encode("idna").decode()
        # A zone tells our own interface: it is nothing to an engine.
        authority = f"[{host.partition('%')[0]}]" if ":" in host else host
        if location.port != DEFAULT_PORTS[location.scheme]:
            authority += f":{location.port}"
        if location.scheme == "http":
            return cls(host, location.port, None, None, None, authority)
        tls = settings.tls or TlsSettings()
        try:
            context = contexts.of(tls)
        except Unusable as error:
            raise ConfigError(f"endpoint {location.url}: tls.{error.member}: {error}") from error
        return cls(host, location.port, None, context, tls.server_name or host.partition("%")[0], authority)

    @property
    def url(self) -> str:
        """What routes are added to in a client that goes by URLs, and is told apart how to connect to a socket."""
        if self.socket is not None:
            return f"http://{self.authority}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'http' if self.ssl is None else 'https'}://{host}:{self.port}"


class Contexts:
    """TLS contexts for connecting to engines, one for each distinct TLS settings that an address goes by."""

    def __init__(self) -> None:
        self._contexts: WeakValueDictionary[TlsSettings, Renewed] = WeakValueDictionary()

    def of(self, settings: TlsSettings) -> Renewed:
        """Raises Unusable if a file cannot be used."""
        # The name is checked for each connection, and is no part of the context.
        key = replace(settings, server_name=None)
        if (known := self._contexts.get(key)) is None:
            files = [file for file in (key.ca, key.certificate, key.key) if file is not None]
            known = self._contexts[key] = Renewed(partial(_context, key), files)
        return known

    def all(self) -> list[Renewed]:
        return list(self._contexts.values())


def _context(settings: TlsSettings) -> ssl.SSLContext:
    """Raises Unusable."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols([ALPN])
    # Whoever names an authority below another's, or an engine's own certificate, means that one.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if not settings.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif settings.ca is not None:
        trust(context, settings.ca, "ca")
    else:
        context.load_default_certs()
    if settings.certificate is not None:
        Pair(settings.certificate, settings.key).load(context)
    return context
