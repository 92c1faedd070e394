"""An engine's URL: which engine it names (``Location``), and how to connect to it (``Address``).

Rules: two spellings of a URL are one ``Location``. Endpoints with the same TLS settings share one context, so that two
addresses are equal if a connection to one could serve the other.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Self
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

import msgspec

from gateway.core.tls import KeyPair, Unusable, WatchedContext, trust
from gateway.errors import ConfigError
from gateway.fleet.settings import EndpointSettings, TlsSettings

DEFAULT_PORTS = {"http": 80, "https": 443, "unix": 0}

PARSED = 4096
"""URLs whose parts are remembered, some 300 bytes each: with each engine that comes or goes all are looked at again."""

ALPN = "http/1.1"
"""The only protocol that we offer: a proxy before an engine that prefers HTTP/2 must not choose that."""


@dataclass(frozen=True, slots=True)
class Location:
    """``scheme`` is ``http``, ``https`` or ``unix``. ``host`` is in lower case and without brackets, and empty where
    there is ``socket``, the path of a Unix socket."""

    scheme: str
    host: str
    port: int
    socket: str | None = None

    @staticmethod
    @lru_cache(PARSED)
    def of(url: str) -> Location:
        parts = urlsplit(url)
        if parts.scheme == "unix":
            return Location("unix", "", 0, parts.path)
        host, percent, zone = (parts.hostname or "").partition("%")
        return Location(parts.scheme, host.lower() + percent + zone, parts.port or DEFAULT_PORTS[parts.scheme])

    @property
    def authority(self) -> str:
        """``HOST:PORT``, an IPv6 address in brackets, or ``unix:PATH``: an engine's name where none is given."""
        if self.socket is not None:
            return f"unix:{self.socket}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """Without a trailing slash, and without the scheme's default port."""
        if self.socket is not None:
            return f"unix://{self.socket}"
        authority = self.authority
        if self.port == DEFAULT_PORTS[self.scheme]:
            authority = authority.rpartition(":")[0]
        return f"{self.scheme}://{authority}"


class Address(msgspec.Struct, frozen=True):
    """Where an engine listens, and how to connect. Equal addresses may share connections.

    ``host``: name or IP address without brackets; empty for a Unix socket. ``socket``: the path of one. ``tls``: None
    for plain HTTP. ``server_name``: for SNI, and the name that the certificate must have; None for plain HTTP.
    ``authority``: the Host header: host, port where it is not the scheme's own, IPv6 in brackets; ``localhost`` for a
    Unix socket.
    """

    host: str
    port: int
    socket: str | None
    tls: WatchedContext | None
    server_name: str | None
    authority: str

    @classmethod
    def of(cls, settings: EndpointSettings, contexts: TlsContexts) -> Self:
        """Raises ConfigError if a file of the TLS settings cannot be used."""
        location = Location.of(settings.url)
        if location.socket is not None:
            return cls("", 0, location.socket, None, None, "localhost")
        host = location.host if location.host.isascii() else location.host.encode("idna").decode()
        # A zone names an interface of this machine, and means nothing to an engine.
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
    def ssl(self) -> ssl.SSLContext | None:
        """For the next connection: it is replaced when its files change. None for plain HTTP."""
        return None if self.tls is None else self.tls.context

    @property
    def url(self) -> str:
        """The base URL for an HTTP client. For a Unix socket the client also needs ``socket``."""
        if self.socket is not None:
            return f"http://{self.authority}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'http' if self.tls is None else 'https'}://{host}:{self.port}"


class TlsContexts:
    """TLS contexts for connecting to engines, one for each distinct TLS settings, kept while an address uses it."""

    def __init__(self) -> None:
        self._contexts: WeakValueDictionary[TlsSettings, WatchedContext] = WeakValueDictionary()

    def of(self, settings: TlsSettings) -> WatchedContext:
        """Raises Unusable if a file cannot be used."""
        # The name is checked for each connection; the context does not hold it.
        key = replace(settings, server_name=None)
        if (known := self._contexts.get(key)) is None:
            files = [file for file in (key.ca, key.certificate, key.key) if file is not None]
            known = self._contexts[key] = WatchedContext(partial(_context, key), files)
        return known

    def all(self) -> list[WatchedContext]:
        return list(self._contexts.values())


def _context(settings: TlsSettings) -> ssl.SSLContext:
    """Raises Unusable."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols([ALPN])
    # A configured intermediate authority, or an engine's own certificate, is trusted without its root.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if not settings.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif settings.ca is not None:
        trust(context, settings.ca, "ca")
    else:
        context.load_default_certs()
    if settings.certificate is not None:
        KeyPair(settings.certificate, settings.key).load(context)
    return context
