"""A server that lists endpoints: a real one, which also hangs, lies and sends without end."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest
from aiohttp import web

from gateway.discovery import entries
from gateway.discovery.entries import Listed
from gateway.discovery.http_source import HttpSource
from gateway.discovery.settings import DiscoverSettings, HttpSettings
from gateway.fleet.settings import TlsSettings
from tests.discovery.telling import followed
from tests.support.tls import Authority
from tests.support.wait import eventually

GOOD = b'[{"targets": ["a:1", "b:2"], "labels": {"role": "decode"}}, {"targets": ["c"]}]'


@dataclass
class Registry:
    """``answer``: a body, or a status. ``asked``: the headers of each question."""

    url: str = ""
    answer: bytes | int = GOOD
    asked: list[dict[str, str]] = field(default_factory=list)
    over: asyncio.Event = field(default_factory=asyncio.Event)

    async def handle(self, http: web.Request) -> web.StreamResponse:
        self.asked.append({name.lower(): value for name, value in http.headers.items()})
        if isinstance(self.answer, bytes):
            return web.Response(body=self.answer, content_type="application/json")
        if self.answer == 0:
            await self.over.wait()  # it hangs
        if self.answer == 1:
            reply = web.StreamResponse()
            await reply.prepare(http)
            with contextlib.suppress(ConnectionError):
                while True:
                    await reply.write(b"[" * 100_000)
        return web.Response(status=self.answer)


@contextlib.asynccontextmanager
async def registry(tls: ssl.SSLContext | None = None) -> AsyncIterator[Registry]:
    made = Registry()
    app = web.Application()
    app.router.add_get("/targets", made.handle)
    runner = web.AppRunner(app, shutdown_timeout=0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    port = runner.addresses[0][1]
    made.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{port}/targets"
    try:
        yield made
    finally:
        made.over.set()
        await runner.cleanup()


def source(url: str, **settings: object) -> HttpSource:
    return HttpSource(DiscoverSettings(http=HttpSettings(url, **{"interval": 0.01, "timeout": 30, **settings})))


async def test_it_is_asked_again_and_again() -> None:
    async with registry() as server:
        settings = {"bearer": "sk-secret", "headers": {"x-team": "one"}}
        async with followed(source(server.url, **settings)) as told:
            await eventually(lambda: told.urls == ["http://a:1", "http://b:2"])
            assert [one.role for one in told.lists[-1]] == ["decode", "decode"]
            assert told.wrong == [
                f"{server.url}: [1].targets[0]: 'c' must be HOST:PORT, with an IPv6 address in brackets"
            ]
            assert server.asked[0]["authorization"] == "Bearer sk-secret"
            assert server.asked[0]["x-team"] == "one"
            server.answer = b"[]"
            await eventually(lambda: told.urls == [])
            assert told.lost == []


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (500, "it answers 500"),
        (302, "it answers 302"),
        (b"<html>", "not JSON"),
        (b"{}", "expected a list"),
        (0, "no whole answer within 0.2 s"),
        (1, "longer than"),
    ],
)
async def test_what_is_no_list_keeps_the_last_one(answer: bytes | int, why: str, monkeypatch) -> None:
    monkeypatch.setattr("gateway.discovery.http_source.MAX_ANSWER", 1 << 18)
    async with registry() as server:
        server.answer = answer
        async with followed(source(server.url, timeout=0.2 if answer == 0 else 30)) as told:
            await eventually(lambda: any(why in line for line in told.lost))
            assert told.lists == []
            server.answer = GOOD
            await eventually(lambda: told.urls == ["http://a:1", "http://b:2"])


async def test_an_answer_is_read_once_and_beside_the_loop(monkeypatch) -> None:
    """Many endpoints take tenths of a second, in which no request would go on."""
    read: list[tuple[bytes, bool]] = []

    def of_json(body: bytes, place: str, settings: DiscoverSettings) -> Listed:
        read.append((body, threading.current_thread() is threading.main_thread()))
        return entries.of_json(body, place, settings)

    monkeypatch.setattr("gateway.discovery.http_source.of_json", of_json)
    async with registry() as server, followed(source(server.url)) as told:
        await eventually(lambda: len(told.lists) >= 3)
        server.answer = b"[]"
        await eventually(lambda: told.urls == [])
        assert read == [(GOOD, False), (b"[]", False)]


async def test_a_server_that_is_not_there_is_asked_again() -> None:
    async with registry() as server:
        url = server.url
    async with followed(source(url)) as told:
        await eventually(lambda: len(told.lost) >= 2)
        assert told.lists == []


async def test_tls_and_its_files(authority: Authority) -> None:
    async with registry(authority.serving()) as server:
        async with followed(source(server.url)) as told:
            await eventually(lambda: told.lost)
            assert "CERTIFICATE_VERIFY_FAILED" in told.lost[-1]
        missing = authority.folder / "later.pem"
        async with followed(source(server.url, tls=TlsSettings(ca=str(missing)))) as told:
            await eventually(lambda: told.lost)
            assert "tls.ca" in told.lost[-1]
            authority.made.cert_pem.write_to_path(str(missing))
            await eventually(lambda: told.urls == ["http://a:1", "http://b:2"])
