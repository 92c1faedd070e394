"""The listener by itself: on both loops, since kvgate serves on uvloop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import uvloop
from aiohttp import web

from gateway.core.tls import WatchedContext
from gateway.proxy.http.tls import context_of
from gateway.proxy.settings import ListenTlsSettings
from gateway.restart.listener import Listener

GET = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request) -> Callable[[Awaitable[None]], None]:
    def run(test: Awaitable[None]) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(test)

    return run


async def _answer(http: web.BaseRequest) -> web.Response:
    return web.Response(text="ok")


@contextlib.asynccontextmanager
async def listening(tls: WatchedContext | None = None) -> AsyncIterator[tuple[Listener, int]]:
    listener = Listener(web.ServerRunner(web.Server(_answer)), backlog=128, tls=tls)
    try:
        yield listener, await listener.open("127.0.0.1", 0)
    finally:
        await listener.close()


async def ask(port: int, context: ssl.SSLContext | None = None) -> bytes:
    """What is answered on a new connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    try:
        writer.write(GET)
        return await reader.read()
    finally:
        writer.close()


def test_a_listener_that_has_stopped_refuses_connections(run):
    async def test() -> None:
        async with listening() as (listener, port):
            assert (await ask(port)).startswith(b"HTTP/1.1 200")
            listener.stop()
            with pytest.raises(ConnectionRefusedError):
                await ask(port)

    run(test())


def test_no_client_that_waits_is_lost_while_certificates_are_renewed(authority):
    async def test() -> None:
        tls = context_of(ListenTlsSettings(*authority.issue("server")))
        trusting = authority.trusting()
        async with listening(tls) as (_, port):
            for _ in range(5):
                asking = [asyncio.get_running_loop().create_task(ask(port, trusting)) for _ in range(8)]
                authority.issue("server")
                await tls.look()
                for answered in await asyncio.gather(*asking):
                    assert answered.startswith(b"HTTP/1.1 200")

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # asyncio's own loses what it is just accepting
        runner.run(test())


def test_a_session_from_before_a_renewal_is_not_resumed(run, authority):
    """Else a client whose authority is no longer trusted would go on by the session that it has."""

    def session(port: int, context: ssl.SSLContext, known: ssl.SSLSession | None) -> tuple[ssl.SSLSession | None, bool]:
        with socket.create_connection(("127.0.0.1", port)) as plain:
            with context.wrap_socket(plain, server_hostname="127.0.0.1", session=known) as secure:
                secure.sendall(GET)
                while secure.recv(4096):
                    pass
                return secure.session, bool(secure.session_reused)

    async def test() -> None:
        tls = context_of(ListenTlsSettings(*authority.issue("server"), authority.file))
        context = authority.trusting()
        context.load_cert_chain(*authority.issue("client", "someone@example.org"))
        async with listening(tls) as (_, port):
            first, _ = await asyncio.to_thread(session, port, context, None)
            again, reused = await asyncio.to_thread(session, port, context, first)
            assert reused
            authority.issue("server")
            await tls.look()
            assert (await asyncio.to_thread(session, port, context, again))[1] is False

    run(test())


def test_clients_authorities_come_into_force_with_other_files(run, authority):
    async def test() -> None:
        files = authority.issue("server")
        tls = context_of(ListenTlsSettings(*files))
        known = authority.trusting()
        known.load_cert_chain(*authority.issue("client", "someone@example.org"))
        async with listening(tls) as (_, port):
            assert await ask(port, authority.trusting())
            await tls.become(context_of(ListenTlsSettings(*files, authority.file)))
            answered = b""
            with contextlib.suppress(ssl.SSLError, ConnectionError):
                answered = await ask(port, authority.trusting())
            assert answered == b""
            assert (await ask(port, known)).startswith(b"HTTP/1.1 200")

    run(test())


def test_a_listener_that_stops_during_a_renewal_listens_no_more(run, authority):
    async def test() -> None:
        tls = context_of(ListenTlsSettings(*authority.issue("server")))
        async with listening(tls) as (listener, port):
            authority.issue("server")
            before, made = tls.on_change, asyncio.Event()

            async def stopped() -> None:
                renewing = asyncio.get_running_loop().create_task(before())
                await asyncio.sleep(0)  # it has begun
                listener.stop()
                await renewing
                made.set()

            tls.on_change = stopped
            await tls.look()
            assert made.is_set()
            with pytest.raises(ConnectionRefusedError):
                await ask(port)

    run(test())


async def test_without_file_descriptors_the_old_certificate_stays_and_the_next_look_tries_again(
    authority, caplog, monkeypatch
):
    tls = context_of(ListenTlsSettings(*authority.issue("server")))
    async with listening(tls) as (_, port):
        shown = []

        async def look() -> None:
            _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=authority.trusting())
            shown.append(writer.get_extra_info("ssl_object").getpeercert(binary_form=True))
            writer.close()

        await look()
        authority.issue("server")
        with monkeypatch.context() as patch:

            def dup(fd: int) -> int:
                raise OSError(24, "Too many open files")

            patch.setattr("socket.dup", dup)
            await tls.look()
        await look()
        assert shown[0] == shown[1]
        assert "not yet in use: [Errno 24] Too many open files" in caplog.text
        await tls.look()
        await look()
        assert shown[2] != shown[1]


def test_it_accepts_on_another_s_socket_until_that_one_does(run):
    async def test() -> None:
        with socket.socket() as kept:
            kept.bind(("127.0.0.1", 0))
            kept.listen()
            kept.setblocking(False)
            other = kept.getsockname()[1]
            async with listening() as (listener, port):
                copy = kept.dup()
                await listener.add([copy])
                assert (await ask(other)).startswith(b"HTTP/1.1 200")
                listener.pause()
                await listener.resume()
                assert (await ask(other)).startswith(b"HTTP/1.1 200")
                listener.remove([copy])
                waiting = asyncio.ensure_future(ask(other))
                assert (await ask(port)).startswith(b"HTTP/1.1 200")
                assert not waiting.done()  # it waits for whoever has the socket
                await listener.add([kept.dup()])
                assert (await waiting).startswith(b"HTTP/1.1 200")
                listener.stop()
                late = kept.dup()
                await listener.add([late])  # it has stopped meanwhile
                assert late.fileno() == -1
                assert listener.sockets == []

    run(test())
