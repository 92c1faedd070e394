"""Covers: gateway/doors.py, gateway/proxy/http/tls.py, gateway/core/tls.py, gateway/fleet/address.py.

TLS and Unix sockets from end to end: a client, a whole gateway, simulated engines.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
import ssl
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvloop

from gateway.config.settings import Config
from gateway.errors import ConfigError
from gateway.fleet.settings import EndpointSettings, TlsSettings
from gateway.proxy.settings import ListenSettings, ListenTlsSettings
from gateway.restart import listener
from simulator.settings import EngineSettings
from tests.support.engines import simulated
from tests.support.gateway import PATIENT_FLEET, Running, config_for, running
from tests.support.tls import Authority
from tests.support.wait import eventually

PATH = "/v1/chat/completions"
CHAT = {"model": "sim", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}


def listening(authority: Authority, url: str, **changes: Any) -> Config:
    """A gateway with TLS for its clients, in front of the engine at ``url``."""
    certificate, key = authority.issue("listener")
    settings = ListenTlsSettings(certificate, key, **changes)
    return config_for(url, listen=ListenSettings(tls=settings), fleet=PATIENT_FLEET)


@contextlib.asynccontextmanager
async def client_of(gateway: Running, context: ssl.SSLContext) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=gateway.url, timeout=30, verify=context, trust_env=False) as client:
        yield client


async def shown(gateway: Running, context: ssl.SSLContext) -> bytes | None:
    """The certificate that a new connection is shown."""
    port = int(gateway.url.rpartition(":")[2])
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    certificate: bytes | None = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    await writer.wait_closed()
    return certificate


# engines


async def test_an_engine_behind_tls_that_asks_for_our_certificate(authority):
    certificate, key = authority.issue("client", "kvgate.internal")
    tls = TlsSettings(ca=authority.file, certificate=certificate, key=key)
    async with simulated(where={"tls": authority.asking(authority.serving())}) as server:
        assert server.url.startswith("https://")
        endpoints = (EndpointSettings(server.url, tls=tls),)
        async with running(config_for(endpoints=endpoints, fleet=PATIENT_FLEET)) as gateway:
            reply = await gateway.client.post(PATH, json=CHAT)
            assert reply.status_code == 200, reply.text
            assert reply.json()["usage"]["completion_tokens"] == 4
            streamed = await gateway.client.post(PATH, json=CHAT | {"stream": True})
            assert streamed.text.endswith("data: [DONE]\n\n")
            assert [line.endpoint for line in gateway.lines] == [f"127.0.0.1:{server.port}"] * 2


async def test_an_engine_on_a_unix_socket(tmp_path):
    async with simulated(where={"path": f"{tmp_path}/engine.sock"}) as server:
        async with running(config_for(server.url, fleet=PATIENT_FLEET)) as gateway:
            reply = await gateway.client.post(PATH, json=CHAT | {"stream": True})
            assert reply.status_code == 200, reply.text
            assert reply.text.endswith("data: [DONE]\n\n")
            (received,) = [one for one in server.received if one.path == PATH]
            assert received.headers["host"] == "localhost"
            name = f"unix:{tmp_path}/engine.sock"
            assert f'endpoint="{name}"' in await gateway.metrics()
            drained = await gateway.client.post(f"{gateway.admin_url}/endpoints/{name}/drain")
            assert drained.status_code == 200, drained.text
            await server.kill()
            await eventually(lambda: gateway.down(server.url), "it is down")
            assert (await gateway.client.post(PATH, json=CHAT)).status_code == 503


async def test_an_engine_on_ipv6():
    async with simulated(connector="none", where={"host": "::1"}) as server:
        assert server.url.startswith("http://[::1]:")
        async with running(config_for(server.url, fleet=PATIENT_FLEET)) as gateway:
            assert (await gateway.client.post(PATH, json=CHAT)).status_code == 200
            (received,) = [one for one in server.received if one.path == PATH]
            assert received.headers["host"] == f"[::1]:{server.port}"


async def test_an_engine_that_is_not_believed_gets_no_request(authority, tmp_path):
    wrong = TlsSettings(ca=Authority(tmp_path, "other").file)
    async with simulated(where={"tls": authority.serving()}) as server:
        endpoints = (EndpointSettings(server.url, tls=wrong),)
        async with running(config_for(endpoints=endpoints)) as gateway:
            reply = await gateway.client.post(PATH, json=CHAT)
            assert reply.status_code == 503
            assert server.received == []
            assert 'reason="tls"' in await gateway.metrics()


# the clients' listener


async def test_a_client_speaks_tls(authority):
    async with simulated() as server, running(listening(authority, server.url)) as gateway:
        assert gateway.url.startswith("https://")
        async with client_of(gateway, authority.trusting()) as client:
            reply = await client.post(PATH, json=CHAT | {"stream": True})
            assert reply.text.endswith("data: [DONE]\n\n")
        # What a client offers beside it, it does not get.
        context = authority.trusting()
        context.set_alpn_protocols(["h2", "http/1.1"])
        _, writer = await asyncio.open_connection("127.0.0.1", int(gateway.url.rpartition(":")[2]), ssl=context)
        assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"
        writer.close()
        await writer.wait_closed()


async def test_old_versions_of_tls_are_refused(authority):
    async with simulated() as server, running(listening(authority, server.url)) as gateway:
        assert gateway.gateway.doors.tls is not None
        assert gateway.gateway.doors.tls.context.minimum_version == ssl.TLSVersion.TLSv1_2
        context = authority.trusting()
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        assert await shown(gateway, context)


async def test_a_client_must_show_a_certificate(authority, tmp_path):
    async with simulated() as server:
        async with running(listening(authority, server.url, client_ca=authority.file)) as gateway:
            async with client_of(gateway, authority.trusting()) as client:
                with pytest.raises((httpx.ConnectError, httpx.ReadError, httpx.RemoteProtocolError)):
                    await client.post(PATH, json=CHAT)
            context = authority.trusting()
            context.load_cert_chain(*authority.issue("client", "someone@example.org"))
            async with client_of(gateway, context) as client:
                assert (await client.post(PATH, json=CHAT)).status_code == 200
            context.load_cert_chain(*Authority(tmp_path, "other").issue("stranger", "someone@example.org"))
            async with client_of(gateway, context) as client:
                with pytest.raises((httpx.ConnectError, httpx.ReadError, httpx.RemoteProtocolError)):
                    await client.post(PATH, json=CHAT)
        assert len([one for one in server.received if one.path == PATH]) == 1


async def test_a_renewed_certificate_while_a_stream_runs(authority):
    settings = EngineSettings(max_num_seqs=4)
    async with simulated(settings) as server, running(listening(authority, server.url)) as gateway:
        assert gateway.gateway.doors.tls is not None
        before = await shown(gateway, authority.trusting())
        async with client_of(gateway, authority.trusting()) as client:
            body = CHAT | {"stream": True, "max_tokens": 200}
            async with client.stream("POST", PATH, json=body) as reply:
                lines = reply.aiter_lines()
                await anext(lines)
                authority.issue("listener")
                await gateway.gateway.doors.tls.look()
                assert await shown(gateway, authority.trusting()) != before
                rest = [line async for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert len(rest) > 100


async def test_clients_authorities_that_are_written_while_they_are_read(authority, tmp_path, monkeypatch):
    """The next look finds them whole."""
    clients, other = f"{tmp_path}/clients.pem", Authority(tmp_path, "other")
    load = ssl.SSLContext.load_verify_locations

    def write(content: bytes) -> None:
        Path(clients).write_bytes(content)

    def load_and_spoil(self: ssl.SSLContext, cafile: str) -> None:
        load(self, cafile=cafile)
        if cafile == clients:
            write(b"")

    write(authority.made.cert_pem.bytes())
    async with simulated() as server:
        async with running(listening(authority, server.url, client_ca=clients)) as gateway:
            assert gateway.gateway.doors.tls is not None
            with monkeypatch.context() as patch:
                patch.setattr(ssl.SSLContext, "load_verify_locations", load_and_spoil)
                write(other.made.cert_pem.bytes())
                for _ in range(3):
                    await gateway.gateway.doors.tls.look()
            write(other.made.cert_pem.bytes() + b"\n")
            await gateway.gateway.doors.tls.look()
            context = authority.trusting()
            context.load_cert_chain(*other.issue("client", "someone@example.org"))
            async with client_of(gateway, context) as client:
                assert (await client.post(PATH, json=CHAT)).status_code == 200


async def test_a_reload_takes_other_files_or_none(authority, tmp_path):
    async with simulated() as server:
        config = listening(authority, server.url)
        async with running(config) as gateway:
            before = await shown(gateway, authority.trusting())
            other = Authority(tmp_path, "other")
            certificate, key = other.issue("other")

            def wanted(settings: ListenTlsSettings | None) -> Config:
                return replace(config, listen=replace(config.listen, tls=settings))

            refused = await gateway.reload(wanted(ListenTlsSettings(certificate, f"{tmp_path}/missing")))
            assert refused.status_code == 400
            assert f"{tmp_path}/missing cannot be read" in refused.text
            assert await shown(gateway, authority.trusting()) == before

            reply = await gateway.reload(wanted(ListenTlsSettings(certificate, key)))
            assert reply.status_code == 200
            assert reply.json()["changes"] == ["listen.tls.certificate", "listen.tls.key"]
            assert await shown(gateway, other.trusting()) != before

            reply = await gateway.reload(wanted(None))
            assert reply.json() == {"changes": [], "restart": ["listen.tls"]}
            assert await shown(gateway, other.trusting()) != before


async def test_plain_http_on_a_tls_port_is_closed_without_a_word_in_the_log(authority, caplog):
    caplog.set_level(logging.INFO)
    async with simulated() as server, running(listening(authority, server.url)) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(gateway.url.rpartition(":")[2]))
        writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            assert b"HTTP" not in await reader.read()
        writer.close()
        async with client_of(gateway, authority.trusting()) as client:
            assert (await client.get("/health")).status_code == 200
        told = [record for record in caplog.records if record.levelno >= logging.WARNING]
        assert [record for record in told if record.name != "kvgate.tokens"] == []


async def test_a_client_that_does_not_shake_hands_is_cut_off(authority, monkeypatch):
    monkeypatch.setattr(listener, "HANDSHAKE", 0.2)
    async with simulated() as server, running(listening(authority, server.url)) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(gateway.url.rpartition(":")[2]))
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()


async def test_files_that_cannot_be_used_stop_the_start(authority, tmp_path):
    config = config_for("http://127.0.0.1:1", listen=ListenSettings(tls=ListenTlsSettings(f"{tmp_path}/none")))
    with pytest.raises(ConfigError, match=r"listen\.tls\.certificate: .*none cannot be read: No such file"):
        async with running(config):
            pass


def test_all_of_it_on_uvloop(authority, tmp_path, caplog):
    """The loop that serves. An engine on a Unix socket, one behind TLS, and clients that speak TLS."""

    async def serve() -> None:
        async with (
            simulated(where={"path": f"{tmp_path}/local.sock"}) as local,
            simulated(where={"tls": authority.asking(authority.serving("engine"))}) as secure,
        ):
            certificate, key = authority.issue("client", "kvgate.internal")
            tls = TlsSettings(ca=authority.file, certificate=certificate, key=key)
            config = listening(authority, local.url, client_ca=authority.file)
            both = (EndpointSettings(local.url), EndpointSettings(secure.url, tls=tls))
            config = replace(config, models=(replace(config.models[0], endpoints=both),))
            async with running(config) as gateway:
                context = authority.trusting()
                context.load_cert_chain(certificate, key)
                async with client_of(gateway, context) as client:
                    bodies = [
                        CHAT | {"stream": True, "messages": [{"role": "user", "content": str(n)}]} for n in range(8)
                    ]
                    replies = await asyncio.gather(*(client.post(PATH, json=body) for body in bodies))
                    assert all(reply.text.endswith("data: [DONE]\n\n") for reply in replies)
                    assert len({line.endpoint for line in gateway.lines}) == 2
                    before = await shown(gateway, context)
                    authority.issue("listener")
                    assert gateway.gateway.doors.tls is not None
                    await gateway.gateway.doors.tls.look()
                    assert await shown(gateway, context) != before
                    port = int(gateway.url.rpartition(":")[2])
                    for said in (b"GET / HTTP/1.1\r\n\r\n", b""):
                        with socket.create_connection(("127.0.0.1", port)) as plain:
                            plain.sendall(said)
                    assert (await client.get("/health")).status_code == 200

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve())
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_relative_files_are_taken_from_beside_the_configuration(authority, tmp_path, monkeypatch):
    from gateway.config.load import load

    certificate, key = authority.issue("listener")
    listen = {"tls": {"certificate": "listener.crt", "key": "listener.key", "client_ca": authority.file}}
    tls = {"ca": os.path.basename(authority.file), "certificate": "absent.crt", "server_name": "e"}
    models = [{"name": "m", "endpoints": [{"url": "https://e:1", "tls": tls}]}]
    file = tmp_path / "plugins.yaml"
    file.write_text(json.dumps({"listen": listen, "models": models}))
    monkeypatch.chdir(Path("/"))
    config = load(str(file), {})
    assert config.listen.tls == ListenTlsSettings(certificate, key, authority.file)
    assert config.models[0].endpoints[0].tls == TlsSettings(authority.file, "absent.crt", None, "e")
