"""Questions to a Kubernetes API server over HTTP: a collection's pages, and the lines of a watch on it.

A watch, with the list before it if there is one, has a connection of its own: a server is asked once in some minutes,
what was broken is not used again, and behind a balancer the next one may be another server.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import httpx
import msgspec

from gateway.discovery.kubernetes.access import Access, Credentials, NoAccess

CONNECT = 5.0
"""Seconds to connect, TLS included."""

READ = 30.0
"""Seconds between two parts of a list: a busy server takes some for a page of 500."""

SILENCE = 150.0
"""Seconds without a line after which a watch is made anew from where it was. Servers send a bookmark about once a
minute, so it is taken for dead; one that sends none is asked again, which costs it little."""

MAX_PAGE = 64 << 20
"""Bytes of a page: 500 objects of 128 KB."""

MAX_LINE = 8 << 20
"""Bytes of a watch's line: an object has at most 1.5 MiB in etcd, and is longer as JSON."""

MAX_RETRY_AFTER = 60.0
"""Seconds that we let a server ask us to wait."""

KEEPALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)
"""A server whose machine has vanished is noticed in half a minute, while ``SILENCE`` is for one that hangs."""


class ApiError(Exception):
    """A question was not answered; the message says why. ``retry_after``: seconds that the server asks us to wait."""

    def __init__(self, message: str, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Gone(ApiError):
    """The server has forgotten the version that was asked for: list again."""


class Cut(ApiError):
    """A watch ended in the middle: go on from where it was."""


class Status(msgspec.Struct):
    """The API's error. ``code`` is an HTTP status."""

    message: str = ""
    code: int = 0


class Api:
    """``namespace``: the one that is asked; None: that of the credentials. ``silence``: see ``SILENCE``."""

    def __init__(self, credentials: Credentials, namespace: str | None = None, *, silence: float = SILENCE) -> None:
        self._credentials = credentials
        self._namespace = namespace
        self._silence = silence

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Connection]:
        """It is made with the first question. Raises ApiError if there are no credentials."""
        try:
            access = await self._credentials.access()
        except NoAccess as error:
            raise ApiError(str(error)) from error
        tls = access.tls or False  # plain http has none, and making one would cost 20 ms
        transport = httpx.AsyncHTTPTransport(verify=tls, socket_options=KEEPALIVE, trust_env=False)
        headers = {"user-agent": "kvgate", "accept": "application/json", "accept-encoding": "identity"}
        if access.token:
            headers["authorization"] = f"Bearer {access.token}"
        async with httpx.AsyncClient(transport=transport, headers=headers, trust_env=False) as client:
            namespace = self._namespace or access.namespace
            yield Connection(client, access, namespace, self._silence, self._credentials.refused)


class Connection:
    """One to the server, for one question at a time. ``refused``: called where the server does not believe us."""

    def __init__(
        self, client: httpx.AsyncClient, access: Access, namespace: str, silence: float, refused: Callable[[], None]
    ) -> None:
        self._client, self._server, self._namespace = client, access.server, namespace
        self._silence, self._refused = silence, refused
        self._extensions = {} if access.server_name is None else {"sni_hostname": access.server_name}

    async def page(self, path: str, query: Mapping[str, str]) -> bytes:
        """One page of a list. ``path``: with ``{namespace}`` where that goes. Raises ApiError."""
        page = bytearray()
        async with self._ask(path, query, READ) as answer:
            async for data in answer.aiter_bytes():
                page += data
                if len(page) > MAX_PAGE:
                    raise ApiError(f"a page of the list has more than {MAX_PAGE} bytes")
        return bytes(page)

    async def lines(self, path: str, query: Mapping[str, str]) -> AsyncGenerator[list[bytes], None]:
        """The lines of a watch, those together that came together; first an empty list once the server has accepted
        it. It ends when the server ends it. Raises ApiError; Cut once it was accepted."""
        async with self._ask(path, query, self._silence) as answer:
            yield []
            rest = bytearray()
            try:
                async for data in answer.aiter_bytes():
                    searched = len(rest)
                    rest += data
                    end = rest.rfind(b"\n", searched) + 1
                    if end:
                        lines = bytes(rest[:end]).split(b"\n")
                        del rest[:end]
                        yield [line for line in lines if line]
                    if len(rest) > MAX_LINE:
                        raise ApiError(f"a line of the watch has more than {MAX_LINE} bytes")
            except httpx.HTTPError as error:
                raise Cut(f"the watch broke off: {_words(error)}") from error

    @asynccontextmanager
    async def _ask(self, path: str, query: Mapping[str, str], read: float) -> AsyncIterator[httpx.Response]:
        """The answer's head has come, and is 200. Raises ApiError."""
        url = self._server + path.format(namespace=self._namespace)
        timeout = httpx.Timeout(CONNECT, read=read)
        try:
            async with self._client.stream(
                "GET", url, params=dict(query), timeout=timeout, extensions=self._extensions
            ) as answer:
                if answer.status_code != 200:
                    await self._refuse(answer)
                yield answer
        except httpx.HTTPError as error:
            raise ApiError(f"{self._server} gave no answer: {_words(error)}") from error

    async def _refuse(self, answer: httpx.Response) -> None:
        """Raises ApiError."""
        body = bytearray()
        async for data in answer.aiter_bytes():
            body += data
            if len(body) > MAX_LINE:
                break
        try:
            said = msgspec.json.decode(body, type=Status).message
        except (msgspec.MsgspecError, UnicodeDecodeError):
            said = ""
        status, said = answer.status_code, f": {said[:300]}" if said else ""
        if status == 410:
            raise Gone(f"the server has forgotten this version{said}")
        if status == 401:
            self._refused()
            raise ApiError(f"{self._server} does not accept our credentials (401){said}")
        if status == 403:
            raise ApiError(f"we lack a permission (403){said}")
        if status == 404:
            raise ApiError(f"{answer.url.path} is not known to the server (404){said}")
        after = answer.headers.get("retry-after", "")
        wait = min(float(after), MAX_RETRY_AFTER) if after.isascii() and after.isdigit() else 0.0
        raise ApiError(f"{self._server} answered {status}{said}", wait)


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
