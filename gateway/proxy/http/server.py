"""The clients' listener: which request goes where, and errors in the client's dialect.

aiohttp's low-level server, without its application stack: a table look-up stands for the router, and a client that
leaves cancels its handler (``handler_cancellation`` is off by default, and without it would cancel nothing).
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import Awaitable, Callable
from math import inf
from typing import Any

import orjson
from aiohttp import StreamReader, http_exceptions, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import RawRequestMessage

from gateway import __version__
from gateway.api.errors import render
from gateway.api.headers import request_id
from gateway.api.models import listing, one
from gateway.api.routes import Dialect, dialect_of, find
from gateway.core.log_limit import LogLimit, left_out
from gateway.core.pauses import LATE, TURN
from gateway.errors import ClientError, GatewayError, NotFound, ShuttingDown
from gateway.framework.clock import SystemClock
from gateway.proxy.http.client import BEGUN, Outbox
from gateway.proxy.http.door import HttpClient
from gateway.proxy.http.heads import MAX_HEAD, TOO_LARGE, GuardedConnection, HeadTooLarge, answered_in, fault_of
from gateway.proxy.http.keys import ClientKeys
from gateway.proxy.http.write_progress import unwritten
from gateway.proxy.serving.client import ClientGone
from gateway.proxy.serving.director import Director
from gateway.proxy.serving.model_directory import ModelDirectory

log = logging.getLogger("kvgate.server")

KEEP_ALIVE = 75.0
"""Seconds that an idle client connection is kept: nginx's default."""

LINGER = 5.0
"""Seconds in which the rest of a refused body is read away, so that the client can read why."""

LOOK = 0.02
"""Seconds between looks at what clients have yet to take, at the end of a shutdown: nothing tells of it."""

DRAIN_RETRY = 1.0
"""Seconds in ``Retry-After`` during a shutdown: the time of a connection to another replica."""

SHOWN_REASON = 200
"""Characters of what is wrong with a request: it may hold the request line."""

JSON = "application/json"

Get = Callable[[web.BaseRequest, str], web.Response]
Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

FAULT = web.RequestKey("fault", GatewayError)
"""Why a request is refused whatever it asks for."""


class Server:
    """Handles one connection's requests, one at a time; counts those in progress, for a shutdown to wait for.

    ``patience``: seconds for the head of a new connection's first request to arrive.
    """

    def __init__(self, director: Director, directory: ModelDirectory, keys: ClientKeys, *, patience: float) -> None:
        self.use(director, directory, keys, patience=patience)
        self.in_progress = 0
        """Requests whose answers are not yet complete."""
        self._idle = asyncio.Event()
        self._idle.set()
        self._draining = False
        self._often = LogLimit(SystemClock())
        self._listeners: list[_Connections] = []
        self._open: dict[str, Get] = {
            "/health": self._alive,
            "/livez": self._alive,
            "/readyz": self._ready,
            "/version": self._version,
        }

    def use(self, director: Director, directory: ModelDirectory, keys: ClientKeys, *, patience: float) -> None:
        """Take these from the next request on: one that has begun goes on with what it began with."""
        self._director = director
        self._directory = directory
        self._keys = keys
        self._patience = patience

    def runner(self) -> web.ServerRunner:
        """What a listener is made of. Access logs are ours, one line a request."""
        server = _Connections(self._handle, patience=lambda: self._patience)
        self._listeners.append(server)
        return web.ServerRunner(server, handle_signals=False, shutdown_timeout=1.0)

    async def drain(self, grace: float) -> bool:
        """Refuse new requests, wait ``grace`` seconds at most for those in progress to end, and for the system to have
        all of their answers: what waits in this process ends with it. True if it was so."""
        self._draining = True
        try:
            async with asyncio.timeout(grace):
                await self._idle.wait()
                while not await self._written():  # noqa: ASYNC110 -- there is no event of it
                    await asyncio.sleep(LOOK)
        except TimeoutError:
            left = self.in_progress, self._unwritten()
            log.warning("%d requests did not end and %d clients did not take all within %g s of grace", *left, grace)
            return False
        return True

    async def _written(self) -> bool:
        """Two looks, between which the loop writes what it was given just now, and to whom could take more."""
        if self._unwritten():
            return False
        await asyncio.sleep(0)
        return not self._unwritten()

    def _unwritten(self) -> int:
        """Connections on which something waits to be written."""
        connections = [connection for listener in self._listeners for connection in listener.connections]
        return sum(unwritten(connection.transport) for connection in connections if connection.transport is not None)

    async def _handle(self, http: web.BaseRequest) -> web.StreamResponse:
        if isinstance(http.protocol, _Connection):
            http.protocol.head_came()
        self.in_progress += 1
        self._idle.clear()
        try:
            return await self._route(http)
        finally:
            self.in_progress -= 1
            if not self.in_progress:
                self._idle.set()

    async def _route(self, http: web.BaseRequest) -> web.StreamResponse:
        chosen = request_id(http.headers.getall("X-Request-Id", []), _make_id)
        dialect = dialect_of(http.rel_url.raw_path)
        try:
            if (fault := http.get(FAULT)) is not None:
                raise fault
            return await self._dispatch(http, chosen)
        except GatewayError as error:
            response = _refusal(error, dialect, chosen)
            if not http.content.is_eof():  # what is still to come of its body, if it comes, is not waited for long
                response.force_close()
            return response
        except ClientGone:
            if http.transport is not None:
                http.transport.abort()
            return web.Response(status=499)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            if (count := self._often.admit(_place(error))) is not None:
                log.exception("request %s failed by a defect of the gateway%s", chosen, left_out(count))
            if BEGUN in http:  # the answer has begun: all that is left is to cut it off visibly
                if http.transport is not None:
                    http.transport.abort()
                return web.Response(status=500)
            return _refusal(GatewayError("The gateway failed; its log says how."), dialect, chosen)

    async def _dispatch(self, http: web.BaseRequest, chosen: str) -> web.StreamResponse:
        # As it was sent: a rule of a proxy in front may not match /v1/%63hat, and here it is no route either.
        path = http.rel_url.raw_path
        if http.method in ("GET", "HEAD"):
            if (get := self._open.get(path)) is not None:
                return get(http, chosen)
            if path == "/v1/models" or path.startswith("/v1/models/"):
                self._keys.check(http.headers)
                return self._models(http.path, chosen)
        route = find(http.method, path)
        try:
            self._keys.check(http.headers)
            if self._draining:
                raise ShuttingDown("The gateway is shutting down; connect again.", retry_after=DRAIN_RETRY)
        except GatewayError as error:
            self._director.refused(route, chosen, error)
            raise
        client = HttpClient(http)
        await self._director.handle(client, route, chosen)
        assert client.answer is not None  # else it would have raised
        return client.answer

    def _alive(self, http: web.BaseRequest, chosen: str) -> web.Response:
        return _json({"status": "ok"}, 200, chosen)

    def _ready(self, http: web.BaseRequest, chosen: str) -> web.Response:
        models = self._directory.readiness()
        if (name := http.query.get("model")) is not None:
            model = self._directory.find(name)[0].model.name
            models = {model: models[model]}
        ready = not self._draining and any(report["ready"] for report in models.values())
        status = "draining" if self._draining else "ready" if ready else "not-ready"
        return _json({"status": status, "models": models}, 200 if ready else 503, chosen)

    def _version(self, http: web.BaseRequest, chosen: str) -> web.Response:
        return _json({"version": __version__}, 200, chosen)

    def _models(self, path: str, chosen: str) -> web.Response:
        entries = self._directory.entries()
        name = path.removeprefix("/v1/models").removeprefix("/")
        if not name:
            return web.Response(body=listing(entries), content_type=JSON, headers={"X-Request-Id": chosen})
        for entry in entries:
            if entry["id"] == name:
                return web.Response(body=one(entry), content_type=JSON, headers={"X-Request-Id": chosen})
        raise NotFound(f"The model {name[:128]!r} does not exist; GET /v1/models lists what there is.", param="model")


class _Connections(web.Server):
    """Makes a connection of ours for each that is accepted. ``patience``: gives the seconds for a new connection's
    first request head to arrive."""

    def __init__(self, handler: Handler, *, patience: Callable[[], float]) -> None:
        super().__init__(handler, request_factory=_request, handler_cancellation=True)
        self._patience = patience
        self._outbox = Outbox()
        self._often = LogLimit(SystemClock())

    def __call__(self) -> web.RequestHandler:
        connection = _Connection(
            self,
            outbox=self._outbox,
            loop=asyncio.get_running_loop(),
            access_log=None,
            keepalive_timeout=KEEP_ALIVE,
            max_line_size=MAX_HEAD,
            max_field_size=MAX_HEAD,
            lingering_time=LINGER,
            auto_decompress=False,
        )
        connection.patience = self._patience()
        connection.often = self._often
        return connection


class _Connection(GuardedConnection):
    """Refuses in our shape what is no HTTP request. aiohttp would answer in plain text, and log a traceback with the
    client's bytes in it: a prompt, or a key.

    Closes a connection whose first request head does not come: aiohttp's own timer starts with the first answer.
    """

    __slots__ = ("_silence", "often", "patience")

    often: LogLimit
    patience: float
    _silence: asyncio.TimerHandle

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        loop = asyncio.get_running_loop()
        due = loop.time() + self.patience
        self._silence = loop.call_at(due, self._unheard, due)

    def _unheard(self, due: float) -> None:
        loop = asyncio.get_running_loop()
        if (now := loop.time()) - due > LATE:  # what has come while we stood still is read first
            self._silence = loop.call_at(now + TURN, self._unheard, inf)
        else:
            self.force_close()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._silence.cancel()
        super().connection_lost(exc)

    def head_came(self) -> None:
        self._silence.cancel()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if not isinstance(exc, http_exceptions.HttpProcessingError):
            return super().handle_error(request, status, exc, message)
        if (count := self.often.admit(name := type(exc).__name__)) is not None:
            log.info("a request that is not valid HTTP was refused: %s%s", name, left_out(count))
        if exc.code == HeadTooLarge.status or isinstance(exc, http_exceptions.LineTooLong):
            error: ClientError = HeadTooLarge(TOO_LARGE)
        else:
            reason = exc.message.strip().partition("\n")[0].rstrip(":")[:SHOWN_REASON]
            error = ClientError(f"The request is not valid HTTP: {reason}")
        response = _refusal(error, Dialect.OPENAI, _make_id())  # nobody knows which path was meant
        response.force_close()
        return response


def _request(
    message: RawRequestMessage,
    payload: StreamReader,
    protocol: web.RequestHandler,
    writer: AbstractStreamWriter,
    task: asyncio.Task[None],
) -> web.BaseRequest:
    """One that comes in chunks is its connection's last: aiohttp 3.14 takes the last line of its trailers for the first
    header of the next request, which behind a proxy is another client's."""
    may_be_large = isinstance(protocol, GuardedConnection) and protocol.may_be_large
    fault = fault_of(message, may_be_large=may_be_large)
    if fault is not None:
        message = message._replace(should_close=True, version=answered_in(message))
    elif message.chunked:
        message = message._replace(should_close=True)
    request = web.BaseRequest(message, payload, protocol, writer, task, asyncio.get_running_loop())
    if fault is not None:
        request[FAULT] = fault
    return request


def _json(content: Any, status: int, chosen: str) -> web.Response:
    headers = {"X-Request-Id": chosen}
    return web.Response(status=status, body=orjson.dumps(content), content_type=JSON, headers=headers)


def _refusal(error: GatewayError, dialect: Dialect, chosen: str) -> web.Response:
    status, headers, body = render(error, dialect)
    response = web.Response(status=status, headers=headers, body=body)
    response.headers["X-Request-Id"] = chosen
    if isinstance(error, ShuttingDown) or status in (408, 413, 415):
        response.force_close()  # what is left of the body, or this listener, is of no use to the connection
    return response


def _place(error: BaseException) -> str:
    """Where in the code ``error`` was raised: the same defect is logged once a minute, each other one too."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return type(error).__name__ if trace is None else f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"


def _make_id() -> str:
    """128 bits, as a UUID has. They tell requests apart and keep no secret: the kernel need not be asked for each."""
    return f"{_CHANCE.getrandbits(128):032x}"


_CHANCE = random.Random(os.urandom(32))
