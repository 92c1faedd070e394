"""The gateway's own questions to an engine: a few small GETs.

Rules: an engine's key goes to that engine only (no redirects, no proxies from the environment, no cookies) and into no
log or error. Every answer is bounded in size and time, and is never decompressed. Every failure is a ``ProbeFailed``
with a short word for a metric's label.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, Self

import aiohttp
import orjson

from gateway.fleet.address import Address
from gateway.fleet.scrape import Scrape, ScrapeReader
from gateway.framework import Clock
from gateway.framework.fleet import ServedModel

MAX_METRICS = 4 * 1024 * 1024
"""Bytes of a scrape: seventy times that of a plain engine, room for many ranks and connectors."""

MAX_JSON = 4 * 1024 * 1024
"""Bytes of ``/v1/models``: about 450 a model, so ten thousand adapters fit."""

MAX_MODELS = 10_000
MAX_NAME = 512
"""Characters of a model's id or a version."""


class ProbeFailed(Exception):
    """``reason``: one of ``refused``, ``connect`` (unreachable), ``dns``, ``tls``, ``timeout``, ``reset``,
    ``unhealthy``, ``too-large``, ``garbage`` (not what was asked for), ``status-NNN``. ``detail``: the cause behind it,
    for the log, or empty."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason} ({detail})" if detail else reason)
        self.reason = reason
        self.detail = detail


class ProbeSessions:
    """Connections to all engines. ``keepalive``: seconds that an idle one is kept; more than the scrape interval."""

    def __init__(self, clock: Clock, keepalive: float) -> None:
        self.clock = clock
        self._keepalive = keepalive
        self._by_socket: dict[str | None, aiohttp.ClientSession] = {}

    def of(self, address: Address) -> aiohttp.ClientSession:
        """The session for this address: aiohttp needs one of its own for each Unix socket."""
        if address.socket not in self._by_socket:
            self._by_socket[address.socket] = self._open(address.socket)
        return self._by_socket[address.socket]

    async def close(self) -> None:
        while self._by_socket:
            await self._by_socket.popitem()[1].close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _open(self, socket: str | None) -> aiohttp.ClientSession:
        clock = self.clock

        async def connecting(_: object, context: SimpleNamespace, __: object) -> None:
            context.began = clock.monotonic()

        async def connected(_: object, context: SimpleNamespace, __: object) -> None:
            context.trace_request_ctx(clock.monotonic() - context.began)

        trace = aiohttp.TraceConfig()
        trace.on_connection_create_start.append(connecting)
        trace.on_connection_create_end.append(connected)
        # No common limit: a hundred engines are asked at once at the start, and one that hangs must not delay another.
        connector = (
            aiohttp.TCPConnector(limit=0, keepalive_timeout=self._keepalive)
            if socket is None
            else aiohttp.UnixConnector(socket, limit=0, keepalive_timeout=self._keepalive)
        )
        return aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,
            trace_configs=[trace],
            headers={"accept": "text/plain, application/json", "accept-encoding": "identity"},
        )


class EngineProbe:
    """Asks one engine. ``timeout``: seconds for one question. ``connected``: called with the seconds of a connect."""

    def __init__(
        self,
        sessions: ProbeSessions,
        address: Address,
        api_key: str | None,
        timeout: float,
        connected: Callable[[float], None],
    ) -> None:
        self._sessions = sessions
        self.retarget(address, api_key)
        self._timeout = aiohttp.ClientTimeout(total=timeout)
        self._connected = connected

    def retarget(self, address: Address, api_key: str | None) -> None:
        """Use these from the next question on."""
        self._address = address
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key else {}

    async def metrics(self) -> bytes:
        return await self._get("/metrics", MAX_METRICS)

    async def scrape(self, reader: ScrapeReader) -> Scrape:
        """``metrics``, read by the engine's own ``reader``."""
        scrape = reader.read(await self.metrics(), self._sessions.clock.monotonic())
        if scrape is None:
            raise ProbeFailed("garbage")
        return scrape

    async def check_health(self) -> None:
        """Raises ProbeFailed: ``unhealthy`` if the engine reports that it is dead (503). No such route is healthy."""
        try:
            await self._get("/health", MAX_JSON)
        except ProbeFailed as failure:
            if failure.reason == "status-503":
                raise ProbeFailed("unhealthy") from None
            if failure.reason not in ("status-404", "status-405"):
                raise

    async def models(self) -> dict[str, ServedModel]:
        """``/v1/models``: entries by id, in the engine's order."""
        entries = _member(await self._json("/v1/models"), "data")
        if not isinstance(entries, list):
            raise ProbeFailed("garbage")
        served = (_served(entry) for entry in entries[:MAX_MODELS])
        return {model.id: model for model in served if model is not None}

    async def version(self) -> str | None:
        """``/version``. None: the engine has no such route, or answers something else."""
        try:
            return _name(_member(await self._json("/version"), "version"))
        except ProbeFailed as failure:
            if failure.reason.startswith("status-4") or failure.reason == "garbage":
                return None
            raise

    async def kv_sources(self) -> Mapping[str, Any]:
        """``/kv_event_sources``: rank -> configuration. Empty: events are off, or the engine has no such route."""
        try:
            answer = await self._json("/kv_event_sources")
        except ProbeFailed as failure:
            if failure.reason.startswith("status-4"):
                return {}
            raise
        return answer if isinstance(answer, dict) else {}

    async def _json(self, path: str) -> Any:
        body = await self._get(path, MAX_JSON)
        try:
            return orjson.loads(body)
        except ValueError:
            raise ProbeFailed("garbage") from None

    async def _get(self, path: str, limit: int) -> bytes:
        return await self._ask("GET", path, limit, self._timeout, self._headers)

    async def _ask(
        self,
        method: str,
        path: str,
        limit: int,
        timeout: aiohttp.ClientTimeout,
        headers: Mapping[str, str],
        body: bytes | None = None,
    ) -> bytes:
        """The body of an answer with status 200, of at most ``limit`` bytes. Raises ProbeFailed."""
        address = self._address
        try:
            async with self._sessions.of(address).request(
                method,
                address.url + path,
                data=body,
                headers=headers,
                timeout=timeout,
                allow_redirects=False,
                ssl=address.ssl or True,
                server_hostname=address.server_name,
                trace_request_ctx=self._connected,
            ) as answer:
                if answer.status != 200:
                    raise ProbeFailed(f"status-{answer.status}")
                return await _bounded(answer.content, limit)
        except TimeoutError:
            raise ProbeFailed("timeout") from None
        except aiohttp.ClientConnectorDNSError:
            raise ProbeFailed("dns") from None
        except (aiohttp.ClientConnectorCertificateError, aiohttp.ClientSSLError) as error:
            raise ProbeFailed("tls", _of_tls(error)) from None
        except aiohttp.ClientConnectorError as error:
            if isinstance(error.os_error, ConnectionRefusedError):
                raise ProbeFailed("refused") from None
            detail = os.strerror(error.os_error.errno) if error.os_error.errno else ""
            # Nobody listens on a Unix socket that does not exist.
            missing = isinstance(error.os_error, FileNotFoundError)
            raise ProbeFailed("refused" if missing else "connect", detail) from None
        except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError, aiohttp.ClientPayloadError, OSError) as error:
            raise _broken_off(error, address) from None
        except (aiohttp.ClientError, ValueError):
            raise ProbeFailed("garbage") from None


def _openssl(error: BaseException | None) -> ssl.SSLError | None:
    """OpenSSL's error behind aiohttp's ``error``."""
    while error is not None:
        if isinstance(error, ssl.SSLError) and not isinstance(error, aiohttp.ClientError):
            return error
        error = error.__cause__ or error.__context__
    return None


def _of_tls(error: BaseException) -> str:
    """For the log: ``certificate verify failed: unable to get local issuer certificate``."""
    cause = _openssl(error)
    if cause is None:
        return str(error)
    reason = (cause.reason or str(cause)).lower().replace("_", " ")
    return f"{reason}: {cause.verify_message}" if isinstance(cause, ssl.SSLCertVerificationError) else reason


def _broken_off(error: BaseException, address: Address) -> ProbeFailed:
    """A connection ended. With TLS 1.3 an engine refuses our certificate after our side of the handshake is done."""
    cause = _openssl(error)
    if cause is not None and "ALERT" in (cause.reason or ""):
        return ProbeFailed("tls", _of_tls(cause))
    gone = (aiohttp.ServerDisconnectedError, aiohttp.ClientConnectionResetError)
    if address.ssl is not None and isinstance(error, gone):
        # The servers of asyncio and uvloop, and so vLLM, then close without an alert.
        return ProbeFailed("reset", "closed after the handshake: it may ask for a certificate that it believes")
    return ProbeFailed("reset")


async def _bounded(content: aiohttp.StreamReader, limit: int) -> bytes:
    chunks: list[bytes] = []
    size = 0
    async for chunk in content.iter_any():
        size += len(chunk)
        if size > limit:
            raise ProbeFailed("too-large")
        chunks.append(chunk)
    return b"".join(chunks)


def _member(answer: Any, key: str) -> Any:
    return answer.get(key) if isinstance(answer, dict) else None


def _name(value: Any) -> str | None:
    return value if isinstance(value, str) and 0 < len(value) <= MAX_NAME else None


def _served(entry: Any) -> ServedModel | None:
    """One entry of ``data``; None if it has no usable id."""
    name = _name(_member(entry, "id"))
    if name is None:
        return None
    length = _member(entry, "max_model_len")
    return ServedModel(
        id=name,
        root=_name(_member(entry, "root")),
        parent=_name(_member(entry, "parent")),
        max_model_len=length if type(length) is int and length > 0 else None,
    )
