"""Small requests to an engine over kept connections, and their answers, read whole.

Rules: an engine's key goes to that engine only (no redirects, no proxies from the environment, no cookies) and into no
log or error. Every answer is bounded in size and time, and is never decompressed. Every failure is a ``ProbeFailed``
with a short word for a metric's label.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable, Iterable

from gateway.fleet.address import Address
from gateway.http1.connection import Connection, encode_head
from gateway.http1.pool import Pool

HEADERS = [("Accept", "text/plain, application/json"), ("Accept-Encoding", "identity")]


class ProbeFailed(Exception):
    """``reason``: one of ``refused``, ``connect`` (unreachable), ``dns``, ``tls``, ``timeout``, ``reset``,
    ``unhealthy``, ``too-large``, ``garbage`` (not what was asked for), ``status-NNN``. ``detail``: the cause behind it,
    for the log, or empty."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason} ({detail})" if detail else reason)
        self.reason = reason
        self.detail = detail


class EngineClient:
    """Sends small requests to one engine over kept connections.

    ``timeout``: seconds for one request. ``connected``: called with the seconds that a new connection took.
    """

    def __init__(
        self, pool: Pool, address: Address, api_key: str | None, timeout: float, connected: Callable[[float], None]
    ) -> None:
        self._pool = pool
        self._timeout = timeout
        self._connected = connected
        self._context: ssl.SSLContext | None = None  # with which it connected last
        self.retarget(address, api_key)

    def retarget(self, address: Address, api_key: str | None) -> None:
        """Use these from the next request on."""
        self._address = address
        self._headers = [*HEADERS, ("Authorization", f"Bearer {api_key}")] if api_key else HEADERS
        self._heads: dict[str, bytes] = {}

    async def get(self, path: str, limit: int) -> bytes:
        """The body of an answer with status 200, of at most ``limit`` bytes. Raises ProbeFailed."""
        address, due = self._address, asyncio.get_running_loop().time() + self._timeout
        if (head := self._heads.get(path)) is None:
            head = self._heads[path] = encode_head("GET", path, address.authority, self._headers, None)
        kept = self._pool.take(address)
        if kept is not None and address.ssl is not self._context:
            # Files of its TLS have changed: whether the engine takes us by the new ones shows now, and not when a
            # request needs a connection.
            kept.abort()
            kept = None
        if kept is not None:
            answer = _Answer(kept, limit)
            try:
                return await answer.read(head, b"", due)
            except _Lost:
                if not answer.wordless:
                    raise ProbeFailed("reset") from None
                # The engine had closed the idle connection.
        return await self._send_anew(address, head, b"", limit, due)

    async def post(
        self, path: str, body: bytes, limit: int, timeout: float, headers: Iterable[tuple[str, str]]
    ) -> bytes:
        """As ``get``. It may change something, and must not be sent twice: it gets a new connection, which cannot have
        died idle. ``headers``: beside those of each request. ``timeout``: in place of the usual one."""
        address = self._address
        head = encode_head("POST", path, address.authority, [*self._headers, *headers], len(body))
        due = asyncio.get_running_loop().time() + timeout
        return await self._send_anew(address, head, body, limit, due)

    async def _send_anew(self, address: Address, head: bytes, body: bytes, limit: int, due: float) -> bytes:
        """Send a request on a new connection. ``due``: ``loop.time()`` by which it must be answered. Raises
        ProbeFailed."""
        self._context = address.ssl
        try:
            async with asyncio.timeout_at(due):
                connection = await _connect(self._pool, address)
        except TimeoutError:
            raise ProbeFailed("timeout") from None
        self._connected(connection.connect_seconds)
        answer = _Answer(connection, limit)
        try:
            return await answer.read(head, body, due)
        except _Lost:
            raise _broken_off(connection.error, address, answer.wordless) from None


class _Lost(Exception):
    """The connection ended before the answer did."""


class _Answer:
    """Receives one answer. ``wordless``: the connection ended before a byte of it came."""

    def __init__(self, connection: Connection, limit: int) -> None:
        self.wordless = True
        self._connection = connection
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0
        self._failure: Exception | None = None
        self._complete = False
        self._decided: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def read(self, head: bytes, body: bytes, due: float) -> bytes:
        """Send the request; returns the answer's body. ``due``: ``loop.time()`` by which it must have come. Raises
        ProbeFailed, _Lost."""
        if not self._connection.usable:
            raise _Lost
        timer = asyncio.get_running_loop().call_at(due, self._decide, ProbeFailed("timeout"))
        try:
            self._connection.send(head, body, self)
            await self._decided
        finally:
            timer.cancel()
            if not self._complete:
                self._connection.abort()
        if self._failure is not None:
            raise self._failure
        return b"".join(self._parts)

    # Called by the connection

    def begin(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.wordless = False
        if status != 200:
            self._decide(ProbeFailed(f"status-{status}"))

    def part(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > self._limit:
            self._decide(ProbeFailed("too-large"))
        else:
            self._parts.append(data)

    def end(self, data: bytes) -> None:
        self._complete = True
        self.part(data)
        self._decide(None)

    def lost(self, error: Exception | None, *, wordless: bool) -> None:
        self.wordless = wordless
        self._decide(_Lost())

    def garbled(self, detail: str) -> None:
        self._decide(ProbeFailed("garbage"))

    # Its own

    def _decide(self, failure: Exception | None) -> None:
        """Only the first outcome counts: what comes of a body after it is not read."""
        if not self._decided.done():
            self._failure = failure
            self._decided.set_result(None)


async def _connect(pool: Pool, address: Address) -> Connection:
    """Raises ProbeFailed."""
    try:
        return await pool.connect(address)
    except (socket.gaierror, UnicodeError):  # a name that is unknown, or cannot be one
        raise ProbeFailed("dns") from None
    except ssl.SSLError as error:
        raise ProbeFailed("tls", _of_tls(error)) from None
    except ConnectionRefusedError:
        raise ProbeFailed("refused") from None
    except FileNotFoundError as error:  # nobody listens on a Unix socket that does not exist
        raise ProbeFailed("refused", error.strerror or "") from None
    except OSError as error:
        raise ProbeFailed("connect", os.strerror(error.errno) if error.errno else str(error)) from None


def _of_tls(error: ssl.SSLError) -> str:
    """For the log: ``certificate verify failed: unable to get local issuer certificate``."""
    reason = (error.reason or str(error)).lower().replace("_", " ")
    return f"{reason}: {error.verify_message}" if isinstance(error, ssl.SSLCertVerificationError) else reason


def _broken_off(error: Exception | None, address: Address, wordless: bool) -> ProbeFailed:
    """A new connection ended. With TLS 1.3 an engine refuses our certificate after our side of the handshake is
    done."""
    if isinstance(error, ssl.SSLError) and "ALERT" in (error.reason or ""):
        return ProbeFailed("tls", _of_tls(error))
    if address.ssl is not None and wordless:
        # The servers of asyncio and uvloop, and so vLLM, then close without an alert.
        return ProbeFailed("reset", "closed after the handshake: it may ask for a certificate that it believes")
    return ProbeFailed("reset")
