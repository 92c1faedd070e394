"""The clients' HTTP server: routes requests, and writes errors in the client's dialect.

It is aiohttp's low-level server, without the application stack: a table look-up replaces the router. A client that
disconnects cancels its handler (``handler_cancellation``, which is off by default).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
from collections.abc import Callable
from math import inf
from typing import cast

import orjson
from aiohttp import http_exceptions, web

from gateway import __version__
from gateway.api.errors import render
from gateway.api.headers import request_id
from gateway.api.models import listing, one
from gateway.api.routes import Dialect, Route, dialect_of, find
from gateway.core.clock import SystemClock
from gateway.core.log_limit import LogLimit, left_out
from gateway.errors import ClientError, GatewayError, NotFound
from gateway.proxy.http.connection import ClientConnection
from gateway.proxy.http.door import HttpClient
from gateway.proxy.http.heads import TOO_LARGE, HeadTooLarge, fault_of, reason_of
from gateway.proxy.http.reply import Outbox
from gateway.proxy.http.write_progress import unwritten
from gateway.proxy.serving.client import ClientGone
from gateway.proxy.serving.director import Director
from gateway.proxy.serving.model_directory import ModelDirectory
from gateway.proxy.serving.stages import Stages
from gateway.tenants.directory import Directory
from gateway.tenants.gate import Gate
from gateway.tenants.sender import caller_of
from gateway.tenants.usage import usage

log = logging.getLogger("kvgate.server")

LOOK = 0.02
"""Seconds between looks at the clients' connections in a shutdown: there is no event for what is looked for."""

LOOK_COST = 2e-5
"""Seconds more for each connection: a look at one costs some microseconds, and other work goes on."""

LOOKS = 3
"""Looks at a write buffer that must all find it empty: a client that reads may make room just before one of them."""

JSON = "application/json"
MODELS = "/v1/models"
USAGE = "/v1/usage"

Get = Callable[[HttpClient, str], None]


class Server:
    """Answers the requests of all client connections, and counts those in progress, for a shutdown to wait for.

    ``tenants``: finds who sends a request. ``patience``: seconds for the head of a new connection's first request to
    arrive. ``assigned_id``, in its methods: the request's id.
    """

    def __init__(
        self, director: Director, directory: ModelDirectory, tenants: Directory, gate: Gate, *, patience: float
    ) -> None:
        self._tenants = tenants
        self.use(director, directory, patience=patience)
        self._gate = gate
        self.stages = Stages()
        self.in_progress = 0
        """Requests whose answers are not yet complete."""
        self._leaving = self._red = False
        self._often = LogLimit(SystemClock())
        self._listeners: list[_Connections] = []
        self._open: dict[str, Get] = {
            "/health": self._alive,
            "/livez": self._alive,
            "/readyz": self._ready,
            "/version": self._version,
        }

    def use(self, director: Director, directory: ModelDirectory, *, patience: float) -> None:
        """Use these from the next request on. A request in progress keeps the old ones."""
        self._director = director
        self._directory = directory
        self._patience = patience

    def runner(self) -> web.ServerRunner:
        """The runner for a listener. aiohttp's access log is off: the gateway writes its own line for each request."""
        server = _Connections(self, patience=lambda: self._patience)
        self._listeners.append(server)
        return web.ServerRunner(server, handle_signals=False, shutdown_timeout=1.0)

    def leave(self, *, ready: bool = False) -> None:
        """Let each answer from now on be the last of its connection. ``ready``: another process serves on the same
        port; else /readyz says that no more requests should be sent here."""
        self._leaving, self._red = True, not ready
        for listener in self._listeners:
            listener.leaving = True
            for connection in listener.all():
                connection.leaving = True

    async def drain(self, grace: float, *, hold: float = 0.0, quiet: float = 0.0) -> bool:
        """Wait at most ``hold + grace`` seconds until all requests have ended and the kernel has all bytes of their
        answers: bytes that are still buffered in this process would be lost. True if all did.

        A connection that waits for a request is closed, but not in the next ``hold`` seconds, not before it has waited
        for ``quiet`` seconds, and not where a part of a request has come: what a client has sent is answered.
        """
        if not self._leaving:
            self.leave()
        now = asyncio.get_running_loop().time
        held_until = now() + hold
        try:
            async with asyncio.timeout(hold + grace):
                while True:
                    patience = inf if now() < held_until else quiet
                    open_ones = [one for one in self._connections() if one.leave(patience)]
                    if not (open_ones or self.in_progress or await self._unwritten()):
                        return True
                    await asyncio.sleep(LOOK + LOOK_COST * len(open_ones))
        except TimeoutError:
            left = self.in_progress, await self._unwritten()
            log.warning("%d requests did not end and %d clients did not take all within %g s of grace", *left, grace)
            return False

    def _connections(self) -> list[ClientConnection]:
        return [connection for listener in self._listeners for connection in listener.all()]

    async def _unwritten(self) -> int:
        """The number of connections with bytes in their write buffers: the largest of some looks.

        Under TLS a socket that has room again looks as if nothing waited for it until the loop has written more. The
        loop needs two turns: asyncio's hears of the room in the first one, after it has woken this task.
        """
        most = 0
        for _ in range(LOOKS):
            transports = [one.transport for one in self._connections() if one.transport is not None]
            most = max(most, sum(map(unwritten, transports)))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        return most

    async def handle(self, client: HttpClient) -> None:
        """Answer one request. Raises nothing but CancelledError."""
        self.in_progress += 1
        given = client.head.headers.getall("X-Request-Id", None)
        assigned_id = _make_id() if given is None else request_id(given, _make_id)
        try:
            fault = fault_of(client.head, may_be_large=client.connection.may_be_large)
            if fault is not None:
                _refuse(client, fault, assigned_id, close=True)
            elif (get := self._open.get(client.path)) is not None and client.method in ("GET", "HEAD"):
                get(client, assigned_id)
            elif client.path == USAGE and client.method in ("GET", "HEAD"):
                self._usage(client, assigned_id)
            elif (client.path == MODELS or client.path.startswith(f"{MODELS}/")) and client.method in ("GET", "HEAD"):
                self._models(client, assigned_id)
            else:
                route = find(client.method, client.path)
                tenants = self._tenants
                if tenants.plain:
                    client.caller = tenants.anyone
                else:
                    self._admit(client, route, assigned_id)
                await self._director.handle(client, route, assigned_id)
        except GatewayError as error:
            _refuse(client, error, assigned_id)
        except ClientGone:
            client.abort()
        except asyncio.CancelledError:
            raise
        except Exception as error:
            if (count := self._often.admit(_place(error))) is not None:
                log.exception("request %s failed by a defect of the gateway%s", assigned_id, left_out(count))
            if client.answer is not None and client.answer.begun:  # all that is left is to cut it off visibly
                client.abort()
            else:
                _refuse(client, GatewayError("The gateway failed; its log says how."), assigned_id)
        finally:
            self.in_progress -= 1

    def invalid(self, error: http_exceptions.HttpProcessingError) -> tuple[int, list[tuple[str, str]], bytes]:
        """What is no HTTP request is refused in our shape. aiohttp would answer in plain text, and log a traceback with
        the client's bytes in it: a prompt, or a key."""
        if (count := self._often.admit(name := type(error).__name__)) is not None:
            log.info("a request that is not valid HTTP was refused: %s%s", name, left_out(count))
        if error.code == HeadTooLarge.status or isinstance(error, http_exceptions.LineTooLong):
            refusal: ClientError = HeadTooLarge(TOO_LARGE)
        else:
            refusal = ClientError(f"The request is not valid HTTP: {reason_of(error)}")
        status, headers, body = render(refusal, Dialect.OPENAI)  # the path, and so the dialect, is not known
        return status, [*headers.items(), ("x-request-id", _make_id())], body

    def _admit(self, client: HttpClient, route: Route, assigned_id: str) -> None:
        """Find who sends the request. Raises GatewayError, which is counted, where it may not go on to the engines."""
        try:
            client.caller = caller_of(client.head.headers, self._tenants)
        except GatewayError as error:
            self._director.refused(route, assigned_id, error)
            raise
        if header := self._tenants.roster.header:
            client.headers = [one for one in client.headers if one[0].lower() != header]

    def _alive(self, client: HttpClient, assigned_id: str) -> None:
        _say(client, orjson.dumps({"status": "ok"}), assigned_id)

    def _ready(self, client: HttpClient, assigned_id: str) -> None:
        models = self._directory.readiness()
        if (name := client.head.url.query.get("model")) is not None:
            model = self._directory.find(name)[0].model.name
            models = {model: models[model]}
        ready = not self._red and any(report["ready"] for report in models.values())
        status = "draining" if self._red else "ready" if ready else "not-ready"
        _say(client, orjson.dumps({"status": status, "models": models}), assigned_id, 200 if ready else 503)

    def _version(self, client: HttpClient, assigned_id: str) -> None:
        _say(client, orjson.dumps({"version": __version__}), assigned_id)

    def _usage(self, client: HttpClient, assigned_id: str) -> None:
        """Of the key that asks, about itself."""
        caller = caller_of(client.head.headers, self._tenants)
        _say(client, orjson.dumps(usage(self._gate, caller)), assigned_id)

    def _models(self, client: HttpClient, assigned_id: str) -> None:
        caller = caller_of(client.head.headers, self._tenants)
        entries, path = self._directory.entries(caller), client.head.url.path
        name = path.removeprefix(MODELS).removeprefix("/")
        if not name:
            return _say(client, listing(entries), assigned_id)
        for entry in entries:
            if entry["id"] == name:
                return _say(client, one(entry), assigned_id)
        raise NotFound(f"The model {name[:128]!r} does not exist; GET /v1/models lists what there is.", param="model")


class _Connections(web.Server):
    """Makes a ``ClientConnection`` for each accepted connection. ``patience``: returns the seconds for the head of its
    first request to arrive. ``leaving``: of new ones."""

    leaving = False

    def __init__(self, handler: Server, *, patience: Callable[[], float]) -> None:
        super().__init__(_unused, handler_cancellation=True)
        self._handler = handler
        self._patience = patience
        self._outbox = Outbox()
        self._stages = handler.stages

    def __call__(self) -> web.RequestHandler:
        connection = ClientConnection(self, self._handler, self._outbox, self._stages, patience=self._patience())
        connection.leaving = self.leaving
        return connection

    def all(self) -> list[ClientConnection]:
        return cast(list[ClientConnection], self.connections)


async def _unused(http: web.BaseRequest) -> web.StreamResponse:
    """aiohttp wants a handler; ``ClientConnection`` calls ours."""
    raise NotImplementedError


def _say(client: HttpClient, body: bytes, assigned_id: str, status: int = 200) -> None:
    client.say(status, [("content-type", JSON), ("x-request-id", assigned_id)], body)


def _refuse(client: HttpClient, error: GatewayError, assigned_id: str, *, close: bool = False) -> None:
    """Answer with ``error``. ``close``: the connection ends with it. It also ends if the rest of the body will not be
    read."""
    status, headers, body = render(error, dialect_of(client.path))
    close = close or status in (408, 413, 415) or not client.body.is_eof()
    with contextlib.suppress(ClientGone):
        client.say(status, [*headers.items(), ("x-request-id", assigned_id)], body, close=close)


def _place(error: BaseException) -> str:
    """Where in the code ``error`` was raised: each such place is logged once a minute at most."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return type(error).__name__ if trace is None else f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"


def _make_id() -> str:
    """128 random bits, as a UUID has. They identify a request and protect nothing, so the kernel's random numbers are
    not needed."""
    return f"{_CHANCE.getrandbits(128):032x}"


_CHANCE = random.Random(os.urandom(32))
