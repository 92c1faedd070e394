"""The simulated API server: collections of objects by namespace, to list, watch, read, create, change and delete.

    async with ApiServer() as server:
        pods = "/api/v1/namespaces/default/pods"
        ... server.url; POST pods, PATCH pods/NAME/status, DELETE pods/NAME; server.faults, server.cut() ...

As a real one it answers in pages, selects by labels and by ``metadata.name``, sends bookmarks, and has forgotten old
versions (410). Nothing validates objects, and patches are JSON merge patches only.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import ssl
from collections.abc import Callable, Iterable
from typing import Any, Self

from aiohttp import web

from simulator.kubernetes.faults import Faults
from simulator.kubernetes.selectors import parse
from simulator.kubernetes.store import Change, Key, Object, Refused, Store, merged

RESOURCES = (
    "api/v1/pods",
    "apis/discovery.k8s.io/v1/endpointslices",
    "apis/inference.networking.k8s.io/v1/inferencepools",
    *(
        f"apis/{group}/v1alpha2/{kind}"
        for group in ("llm-d.ai", "inference.networking.x-k8s.io")
        for kind in ("inferenceobjectives", "inferencemodelrewrites")
    ),
)
"""With their groups and versions. Others are not known, as where their CRD is missing: add to ``resources``."""

BOOKMARK_SECONDS = 60.0
"""About how often a real server sends one."""

Matches = Callable[[Object], bool]


class ApiServer:
    """``tokens``: which a request must have one of; empty: nobody is asked. ``counts``: requests by method, and LIST
    and WATCH."""

    def __init__(
        self,
        tokens: Iterable[str] = (),
        *,
        tls: ssl.SSLContext | None = None,
        history: int = 1000,
        bookmark_seconds: float = BOOKMARK_SECONDS,
    ) -> None:
        self.store = Store(history)
        self.faults = Faults()
        self.tokens = set(tokens)
        self.resources = set(RESOURCES)
        self.counts: dict[str, int] = {}
        self._tls, self._bookmark_seconds = tls, bookmark_seconds
        self._host, self._port = "127.0.0.1", 0
        self._runner: web.AppRunner | None = None
        self._watches: set[asyncio.Transport] = set()
        self._continued: dict[str, tuple[str, list[Object]]] = {}
        self._numbers = itertools.count(1)

    @property
    def url(self) -> str:
        return f"{'http' if self._tls is None else 'https'}://{self._host}:{self._port}"

    @property
    def watches(self) -> int:
        """Under way now."""
        return len(self._watches)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Again after ``stop``: on the same port."""
        app = web.Application(client_max_size=16 << 20)
        app.router.add_route("*", "/{path:.*}", self._handle)
        # Not 0, which aiohttp takes for ever: a watch may have begun while the others were cut off.
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.01)
        await self._runner.setup()
        await web.TCPSite(self._runner, self._host, self._port, ssl_context=self._tls).start()
        self._port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        if self._runner is not None:
            self.cut()
            await self._runner.cleanup()
            self._runner = None

    def cut(self) -> None:
        """Break off all watches, in the middle of their bodies."""
        for transport in self._watches:
            transport.abort()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        try:
            if self.faults.statuses and request.method == "GET":
                code = self.faults.statuses.pop(0)
                raise Refused(code, "Injected", "injected by a test")
            if self.tokens and request.headers.get("authorization", "").removeprefix("Bearer ") not in self.tokens:
                raise Refused(401, "Unauthorized", "Unauthorized")
            if request.path == "/readyz":
                return web.Response(text="ok")
            return await self._answer(request)
        except Refused as error:
            return web.json_response(_status(error), status=error.code)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        key, subresource = self._key(request.path)
        method = request.method
        if method == "GET" and not key.name:
            watches = request.query.get("watch") in ("1", "true")
            return await (self._watch(request, key) if watches else self._list(request, key))
        self._count(method)
        if method == "GET":
            return web.json_response(self.store.get(key))
        if method == "POST" and not key.name:
            made = await request.json()
            if not (name := made.get("metadata", {}).get("name")):
                raise Refused(422, "Invalid", "metadata.name: Required value")
            return web.json_response(self.store.create(Key(key.resource, key.namespace, name), made), status=201)
        if method == "DELETE" and key.name:
            return web.json_response(self.store.delete(key))
        if method in ("PUT", "PATCH") and key.name:
            given, old = await request.json(), self.store.get(key)
            if method == "PATCH":
                given = merged(old, given)
            if subresource == "status":
                given = {**old, "status": given.get("status", {})}
            return web.json_response(self.store.change(key, given))
        raise Refused(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")

    def _key(self, path: str) -> tuple[Key, str]:
        parts = path.strip("/").split("/")
        head = 2 if parts[0] == "api" else 3
        if len(parts) > head + 2 and parts[head] == "namespaces":
            resource = "/".join((*parts[:head], parts[head + 2]))
            if resource in self.resources:
                name, subresource, *_ = (*parts[head + 3 :], "", "")
                return Key(resource, parts[head + 1], name), subresource
        raise Refused(404, "NotFound", "the server could not find the requested resource")

    async def _list(self, request: web.Request, key: Key) -> web.StreamResponse:
        self._count("LIST")
        if self.faults.slow_page:
            await asyncio.sleep(self.faults.slow_page)
        if token := request.query.get("continue"):
            if self.faults.forgetting_pages or token not in self._continued:
                raise Refused(410, "Expired", "The provided continue parameter is too old")
            version, found = self._continued.pop(token)
        else:
            matches = _selected(request)
            version = str(self.store.version)
            found = [one for one in self.store.of(key.resource, key.namespace) if matches(one)]
        limit = int(request.query.get("limit", 0)) or len(found)
        meta = {"resourceVersion": version}
        if found[limit:]:
            meta["continue"] = f"token-{next(self._numbers)}"
            self._continued[meta["continue"]] = version, found[limit:]
        return web.json_response({"kind": "List", "metadata": meta, "items": found[:limit]})

    async def _watch(self, request: web.Request, key: Key) -> web.StreamResponse:
        self._count("WATCH")
        version = int(request.query.get("resourceVersion") or self.store.version)
        answer = web.StreamResponse(headers={"content-type": "application/json"})
        answer.enable_chunked_encoding()
        if self.store.since(version) is None:
            gone = Refused(410, "Expired", f"too old resource version: {version} ({self.store.version})")
            if not self.faults.gone_as_event:
                raise gone
            await answer.prepare(request)
            await answer.write(_line("ERROR", _status(gone)))
            return answer
        if (transport := request.transport) is None:  # the client has left
            return answer
        self._watches.add(transport)
        try:
            await answer.prepare(request)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(int(request.query.get("timeoutSeconds", 1800))):
                    bookmarks = "allowWatchBookmarks" in request.query
                    await self._tell(answer, key, version, _selected(request), bookmarks=bookmarks)
        finally:
            self._watches.discard(transport)
        return answer

    async def _tell(
        self, answer: web.StreamResponse, key: Key, version: int, matches: Matches, *, bookmarks: bool
    ) -> None:
        """For ever, or until the history that it has yet to tell is gone. One that has fallen silent stays so."""
        while (changes := self.store.since(version)) is not None:
            if self.faults.silent:
                await asyncio.Event().wait()
            version = self.store.version
            lines = b"".join(self._line(change, matches) for change in changes if _is_of(change, key))
            if lines:
                half = len(lines) // 2 if self.faults.torn else 0
                if half:
                    await answer.write(lines[:half])
                    await asyncio.sleep(0.01)
                await answer.write(lines[half:])
            try:
                async with asyncio.timeout(self._bookmark_seconds):
                    while self.store.version == version:
                        await self.store.wait()
            except TimeoutError:
                if bookmarks and not self.faults.silent:
                    meta = {"resourceVersion": str(version), "creationTimestamp": None}
                    await answer.write(_line("BOOKMARK", {"metadata": meta}))

    def _line(self, change: Change, matches: Matches) -> bytes:
        """The event of a change, as a watch with this selector sees it: labels that match no more are a deletion."""
        was, now = change.before, change.after
        if was is not None and not matches(was):
            was = None
        if now is not None and not matches(now):
            now = None
        if now is not None:
            return _line("ADDED" if was is None else "MODIFIED", now)
        if was is None or self.faults.losing:
            return b""
        meta = {**was["metadata"], "resourceVersion": str(change.version)}
        return _line("DELETED", {**was, "metadata": meta})

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1


def _is_of(change: Change, key: Key) -> bool:
    return change.key.resource == key.resource and change.key.namespace == key.namespace


def _selected(request: web.Request) -> Matches:
    """Raises Refused."""
    try:
        labels = parse(request.query.get("labelSelector", ""))
    except ValueError as error:
        raise Refused(400, "BadRequest", str(error)) from error
    field, _, name = request.query.get("fieldSelector", "").partition("=")
    if field not in ("", "metadata.name"):
        raise Refused(400, "BadRequest", f"field label not supported: {field}")

    def matches(one: Object) -> bool:
        meta = one["metadata"]
        return (not field or meta["name"] == name) and labels(meta.get("labels") or {})

    return matches


def _line(kind: str, what: Any) -> bytes:
    return json.dumps({"type": kind, "object": what}).encode() + b"\n"


def _status(error: Refused) -> Object:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "message": str(error),
        "reason": error.reason,
        "code": error.code,
    }
