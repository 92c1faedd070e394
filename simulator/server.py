"""The engine's HTTP server: one request in, its fault or its answer out; starts, ends gracefully, or dies.

server = EngineServer(EngineSettings())
await server.start()
... server.url, server.faults, server.received ...
await server.close()
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections import Counter
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from aiohttp import web

from simulator.blocks import BlockPool
from simulator.call import Call
from simulator.errors import ApiError, EngineDead, busy
from simulator.exposition import CONTENT_TYPE, render
from simulator.failure import begin_with_error, tell
from simulator.faults import Fault, FaultKind, Faults
from simulator.listener import Connections, Listener
from simulator.routes import DEV_ROUTES, ROUTES, SCALE_OUT_ROUTES, Answer
from simulator.service import Service
from simulator.settings import EngineSettings
from simulator.sink import Sink, hang
from simulator.transfer.parameters import Leg, leg_of

MAX_BODY = 256 * 1024 * 1024
"""vLLM has no limit of its own; this one keeps a test from eating the machine."""

RECORDED = 2000
"""Requests kept in ``received``; the oldest go first."""

GRACE = 1.0
"""Seconds that running answers have when the server closes."""

GUARDED = ("/v1", "/v2", "/inference", "/cohere")
"""Paths that want the api key. All others are open, as in vLLM."""


@dataclass(frozen=True, slots=True)
class Received:
    """A request as it came. ``headers`` keeps order, duplicates and case-insensitive names."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


class EngineServer:
    """One simulated vLLM. ``faults`` may be set before ``start``; ``url`` and the KV addresses are known after it."""

    def __init__(self, settings: EngineSettings | None = None, faults: Faults | None = None) -> None:
        self.settings = settings or EngineSettings()
        self.faults = faults or Faults()
        self.service = Service(self.settings)
        self.received: list[Received] = []
        self.died = asyncio.Event()
        self._web: Connections | None = None
        self._listener: Listener | None = None
        self._host = ""
        self._path: str | None = None
        self._scheme = "http"
        self._started = 0.0
        self._requests: Counter[tuple[str, str, str]] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        self._busy: set[asyncio.Transport] = set()

    async def start(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        path: str | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Listen: at the Unix socket ``path`` if there is one (vLLM's ``--uds``), else on ``port``, with ``tls`` as
        ``https``. ``host`` is for KV events as well. Raises OSError or zmq.ZMQError if a port is taken."""
        self._host = host
        self._path = path
        self._scheme = "http" if tls is None else "https"
        self._started = time.time()
        await self.service.start(host, self._die)
        self._web = Connections(
            self._handle, request_factory=_request, handler_cancellation=True, access_log=None, auto_decompress=False
        )
        self._listener = Listener(self._web, tls)
        self.faults.refuse = self._refuse
        self.faults.accept = self._accept
        try:
            self._listener.open(path or (host, port))
        except OSError:
            await self.service.close()
            raise

    async def close(self) -> None:
        """Stop listening, let running answers end for a second, then cut them. Works after ``kill`` as well."""
        if self._listener is not None:
            self._listener.close()
        if self._web is not None:
            # First those that are idle: the grace is for answers.
            self._web.pre_shutdown()
            await self._web.shutdown(GRACE)
        await self._stop()

    async def kill(self) -> None:
        """Die: every connection and every socket is gone at once."""
        self.died.set()
        if self._listener is not None:
            self._listener.close()
        for connection in self._web.connections if self._web is not None else ():
            if connection.transport is not None:
                connection.transport.abort()
        await self._stop()

    async def _stop(self) -> None:
        current = asyncio.current_task()
        for task in list(self._tasks):
            if task is not current:
                task.cancel()
        await self.service.close()

    @property
    def port(self) -> int:
        return self._listener.port if self._listener is not None else 0

    @property
    def url(self) -> str:
        if self._path is not None:
            return f"unix://{self._path}"
        host = "127.0.0.1" if self._host in ("0.0.0.0", "") else self._host
        return f"{self._scheme}://{f'[{host}]' if ':' in host else host}:{self.port}"

    @property
    def kv_endpoint(self) -> str | None:
        """The PUB socket's address of rank 0; None without KV events."""
        publishers = self.service.sockets.publishers
        return publishers[0].endpoint if publishers else None

    @property
    def kv_replay(self) -> str | None:
        publishers = self.service.sockets.publishers
        return publishers[0].replay if publishers else None

    @property
    def bootstrap(self) -> str | None:
        """host:port of the bootstrap server of a Mooncake or SGLang producer; None: there is none."""
        return self.service.connectors[0].bootstrap

    @property
    def cache(self) -> BlockPool:
        """What rank 0 really holds."""
        return self.service.engines[0].pool

    @property
    def running(self) -> int:
        """Requests in the batch, of all ranks."""
        return self.service.running

    @property
    def waiting(self) -> int:
        return self.service.waiting

    @property
    def aborted(self) -> int:
        """Requests whose client left before their end."""
        return self.service.aborted

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        transport = request.transport
        if transport is None:
            # The client left before the request was looked at.
            return web.Response()
        self._busy.add(transport)
        try:
            return await self._respond(request)
        finally:
            self._busy.discard(transport)

    async def _respond(self, request: web.BaseRequest) -> web.StreamResponse:
        raw = await request.read()
        path, method = request.path, request.method
        self._record(Received(method, path, request.headers, raw))
        fault = None
        if not path.startswith("/simulator/"):
            fault = self.faults.take(method, path, partial(self._leg, raw))
        headers = self._echo(request)
        call = Call(self.service, request, raw, Sink(request, fault, headers), fault)
        answered = False
        try:
            response = await self._fail(call, fault) if fault is not None else None
            if response is None:
                response = await self._answer(call, method, path)
            answered = True
        except ApiError as error:
            # What pydantic refuses never comes as far as the connector.
            answered = call.sink.opened or error.kind == "Bad Request"
            response = await tell(call, error)
        except EngineDead as error:
            self._die(str(error))
            await hang()
        finally:
            if call.generation is not None:
                call.generation.close()
            if not (answered or call.sink.opened):
                self._reject(call)
        known = path in ROUTES or path in DEV_ROUTES or path in SCALE_OUT_ROUTES or path == "/metrics"
        handler = path if known else "none"
        self._requests[handler, method, f"{response.status // 100}xx"] += 1
        return response

    async def _answer(self, call: Call, method: str, path: str) -> web.StreamResponse:
        key = self.settings.api_key
        if key and path.startswith(GUARDED) and call.request.headers.get("Authorization") != f"Bearer {key}":
            return await call.sink.json({"error": "Unauthorized"}, 401)
        if path == "/metrics" and method == "GET":
            page = render(self.settings, self.service.engines, self._started, self.service.rejected, self._requests)
            return await call.sink.raw(page, kind=CONTENT_TYPE)
        if path == "/simulator/faults":
            return await self._change_faults(call, method)
        if path == "/simulator/ranks":
            return await self._change_ranks(call, method)
        methods: Mapping[str, Answer] | None = ROUTES.get(path)
        if methods is None and self.settings.dev_mode:
            methods = DEV_ROUTES.get(path)
        if methods is None and self.settings.scale_out:
            methods = SCALE_OUT_ROUTES.get(path)
        if methods is None:
            return await call.sink.json({"detail": "Not Found"}, 404)
        answer = methods.get(method)
        if answer is None:
            allowed = ", ".join(methods)
            return await call.sink.with_headers({"Allow": allowed}).json({"detail": "Method Not Allowed"}, 405)
        return await answer(call)

    async def _fail(self, call: Call, fault: Fault) -> web.StreamResponse | None:
        """Do what the fault does before the head; None: the answer goes on, and the sink knows the rest."""
        sink = call.sink
        match fault.kind:
            case FaultKind.HANG:
                await hang()
            case FaultKind.DROP:
                await sink.drop()
            case FaultKind.GARBAGE:
                await sink.garbage()
            case FaultKind.DIE:
                raise EngineDead("injected")
            case FaultKind.SLOW:
                await asyncio.sleep(fault.seconds)
            case FaultKind.ADMISSION:
                raise busy()
            case FaultKind.STATUS:
                return await sink.raw(fault.body.encode(), fault.status)
            case FaultKind.ERROR_EVENT:
                return await begin_with_error(call)
            case _:
                pass
        return None

    def _reject(self, call: Call) -> None:
        try:
            call.reject()
        except EngineDead as error:
            self._die(str(error))

    def _die(self, reason: str) -> None:
        """A request has killed the engine."""
        self._spawn(self.kill())

    async def _change_faults(self, call: Call, method: str) -> web.StreamResponse:
        """``POST`` adds one (a JSON object of Fault's fields), ``DELETE`` clears; both answer how many there are."""
        if method == "DELETE":
            self.faults.clear()
        elif method == "POST":
            options = dict(call.body)
            try:
                self.faults.inject(options.pop("kind", ""), **options)
            except (TypeError, ValueError) as error:
                raise ApiError(400, str(error)) from error
        return await call.sink.json({"faults": len(self.faults)})

    async def _change_ranks(self, call: Call, method: str) -> web.StreamResponse:
        """``POST`` says how many ranks there shall be (``{"ranks": 2}``), as elastic scaling does; both answer that."""
        if method == "POST":
            ranks = call.body.get("ranks")
            if not isinstance(ranks, int) or ranks < 1:
                raise ApiError(400, "ranks must be a number, at least 1")
            await self.service.resize(ranks)
        return await call.sink.json({"ranks": len(self.service.engines)})

    def _leg(self, raw: bytes) -> Leg | None:
        """Which leg a body is, whatever else is wrong with it."""
        try:
            return leg_of(json.loads(raw), self.settings)
        except (ValueError, RecursionError):
            return None

    def _record(self, received: Received) -> None:
        self.received.append(received)
        if len(self.received) > RECORDED:
            del self.received[: RECORDED // 2]

    def _echo(self, request: web.BaseRequest) -> dict[str, str]:
        request_id = request.headers.get("X-Request-Id") if self.settings.echo_request_id else None
        return {"X-Request-Id": request_id} if request_id else {}

    def _refuse(self, seconds: float) -> None:
        """Refuse connections, and close those that are idle: a pooled one would still be answered."""
        if self._listener is None or self._web is None:
            return
        self._listener.refuse()
        for connection in self._web.connections:
            if connection.transport is not None and connection.transport not in self._busy:
                connection.transport.close()
            else:
                connection.close()
        if seconds:
            asyncio.get_running_loop().call_later(seconds, self._accept)

    def _accept(self) -> None:
        if self._listener is not None:
            self._listener.accept()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work, name="simulator")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _request(message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
    """aiohttp's own factory, with a larger body."""
    loop = asyncio.get_running_loop()
    return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=MAX_BODY)
