"""The TLS context of the clients' listener."""

from __future__ import annotations

import ssl
from functools import partial

from gateway.core.tls import KeyPair, Unusable, WatchedContext, trust
from gateway.errors import ConfigError
from gateway.proxy.settings import ListenTlsSettings

PROTOCOLS = ["http/1.1"]


def context_of(settings: ListenTlsSettings) -> WatchedContext:
    """The context of a listener. Raises ConfigError, whose ``param`` is the setting that names a file,
    if that cannot be used."""
    files = (settings.certificate, settings.key, settings.client_ca)
    try:
        return WatchedContext(partial(_context, settings), [file for file in files if file is not None])
    except Unusable as error:
        raise ConfigError(str(error), param=error.member) from error


def _context(settings: ListenTlsSettings) -> ssl.SSLContext:
    """Raises Unusable."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(PROTOCOLS)
    KeyPair(settings.certificate, settings.key).load(context)
    if settings.client_ca is not None:
        trust(context, settings.client_ca, "client_ca")
        context.verify_mode = ssl.CERT_REQUIRED
    return context
