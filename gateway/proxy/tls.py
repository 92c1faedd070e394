"""TLS on the clients' listener: its context, and the listener itself.

A client that does not speak TLS, or takes too long about it, is gone before the server knows of it.
"""

from __future__ import annotations

import asyncio
import ssl
from functools import partial

from aiohttp import web

from gateway.errors import ConfigError
from gateway.framework.tls import Pair, Renewed, Unusable, trust
from gateway.proxy.settings import ListenTlsSettings

HANDSHAKE = 10.0
"""Seconds for a handshake: two round trips of the slowest network that a stream of tokens is of use on, many times
over. asyncio's default is 60, for which a connection that says nothing would be held."""

GOODBYE = 30.0
"""Seconds for a client to take the rest of its last answer, some 64 KB, and to say goodbye, before its connection is
cut: asyncio's default. With 2, who reads 30 KB a second would lose the end of an answer that closes its connection."""

PROTOCOLS = ["http/1.1"]


def context_of(settings: ListenTlsSettings) -> Renewed:
    """What makes the connections of a listener. Raises ConfigError, whose ``param`` is the setting that names a file,
    if that cannot be used."""
    files = (settings.certificate, settings.key, settings.client_ca)
    try:
        return Renewed(partial(_context, settings), [file for file in files if file is not None])
    except Unusable as error:
        raise ConfigError(str(error), param=error.member) from error


def _context(settings: ListenTlsSettings) -> ssl.SSLContext:
    """Raises Unusable."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(PROTOCOLS)
    Pair(settings.certificate, settings.key).load(context)
    if settings.client_ca is not None:
        trust(context, settings.client_ca, "client_ca")
        context.verify_mode = ssl.CERT_REQUIRED
    return context


class Site(web.BaseSite):
    """A listener of ``runner``, as aiohttp's ``TCPSite``, with bounds for TLS. ``context``: None for plain HTTP."""

    def __init__(
        self, runner: web.BaseRunner, host: str, port: int, *, backlog: int, context: ssl.SSLContext | None = None
    ) -> None:
        super().__init__(runner, ssl_context=context, backlog=backlog)
        self._host = host
        self._port = port

    @property
    def name(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{'http' if self._ssl_context is None else 'https'}://{host}:{self._port}"

    async def start(self) -> None:
        """Raises OSError."""
        await super().start()
        server = self._runner.server
        assert server is not None, "its runner was set up"
        bounded = self._ssl_context is not None
        self._server = await asyncio.get_running_loop().create_server(
            server,
            self._host,
            self._port,
            ssl=self._ssl_context,
            backlog=self._backlog,
            ssl_handshake_timeout=HANDSHAKE if bounded else None,
            ssl_shutdown_timeout=GOODBYE if bounded else None,
        )
