"""TLS of a picker's listener, with grpc.aio and by hand."""

from __future__ import annotations

import asyncio
import datetime
import ssl
import sys
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from gateway.core.tls import KeyPair, WatchedContext
from gateway.epp.transport.certificates import of_files, self_signed
from gateway.epp.transport.frames import PREFACE, SETTINGS, settings
from gateway.epp.transport.health import HealthCheckRequest, HealthCheckResponse
from gateway.epp.transport.limits import Limits
from gateway.errors import ConfigError
from tests.support.http2 import body_of, process, requests, serving
from tests.support.tls import Authority
from tests.support.wait import eventually


async def certificate_of(port: int) -> x509.Certificate:
    """What is shown on a new connection to one who believes anything, as gateways do."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    shown = writer.get_extra_info("ssl_object")
    assert shown.selected_alpn_protocol() == "h2"
    writer.write(PREFACE + settings({}))
    assert (await reader.readexactly(9))[3] == SETTINGS
    writer.close()
    return x509.load_der_x509_certificate(shown.getpeercert(binary_form=True))


async def echoes(port: int, root: bytes, name: str) -> None:
    options = [("grpc.ssl_target_name_override", name)]
    credentials = grpc.ssl_channel_credentials(root)
    body = bytes(300_000)
    async with grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials, options) as channel:
        call = process(channel)()
        for one in requests(body):
            await call.write(one)
        await call.done_writing()
        assert body_of([answer async for answer in call]) == body
        check = channel.unary_unary(
            "/grpc.health.v1.Health/Check", HealthCheckRequest.SerializeToString, HealthCheckResponse.FromString
        )
        assert (await check(HealthCheckRequest())).status == 1


@pytest.mark.asyncio(loop_factories=["asyncio", "uvloop"])
async def test_a_certificate_that_is_made_at_the_start() -> None:
    async with serving(tls=self_signed()) as served:
        made = await certificate_of(served.port)
        assert made.subject == made.issuer
        now = datetime.datetime.now(datetime.UTC)
        assert made.not_valid_before_utc < now < made.not_valid_after_utc
        await echoes(served.port, made.public_bytes(Encoding.PEM), "localhost")
    assert self_signed().context is not self_signed().context


async def test_files_are_read_again(authority: Authority) -> None:
    watched = of_files(KeyPair(*authority.issue("picker")))
    root = await asyncio.to_thread(Path(authority.file).read_bytes)
    async with serving(tls=watched) as served:
        first = await certificate_of(served.port)
        await echoes(served.port, root, "localhost")
        authority.issue("picker")
        await watched.look()
        second = await certificate_of(served.port)
        assert first.serial_number != second.serial_number


@pytest.mark.asyncio(loop_factories=["asyncio", "uvloop"])
async def test_who_speaks_no_tls_is_disconnected(authority: Authority) -> None:
    async with serving(tls=of_files(KeyPair(*authority.issue("picker")))) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(PREFACE + settings({}))
        assert SETTINGS not in (await asyncio.wait_for(reader.read(), 30))[3:4]
        writer.close()
        await certificate_of(served.port)
        await eventually(lambda: not served.server.connections)


async def test_a_drain_over_tls_ends_calls_properly() -> None:
    """grpc.aio's does not answer the end of TLS: the connection is cut after ``linger``."""
    async with serving(Limits(linger=0.2), tls=self_signed()) as served:
        made = await certificate_of(served.port)
        credentials = grpc.ssl_channel_credentials(made.public_bytes(Encoding.PEM))
        options = [("grpc.ssl_target_name_override", "localhost")]
        async with grpc.aio.secure_channel(f"127.0.0.1:{served.port}", credentials, options) as channel:
            call = process(channel)()
            await call.write(requests(b"")[0])
            served.listener.stop()
            await eventually(lambda: served.server.calls)
            await served.server.drain(0.0)
            assert [answer async for answer in call] == []
            assert await call.code() == grpc.StatusCode.OK
            await served.listener.close()
            assert not served.server.connections


def test_files_that_cannot_be_used_are_named(authority: Authority) -> None:
    certificate, key = authority.issue("picker")
    with pytest.raises(ConfigError, match=r"missing\.crt cannot be read") as raised:
        of_files(KeyPair("missing.crt", key))
    assert raised.value.param == "certificate"
    with pytest.raises(ConfigError) as raised:
        of_files(KeyPair(certificate, authority.issue("other")[1]))
    assert raised.value.param == "key"


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "cryptography"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(ConfigError, match=r"kvgate\[epp\]"):
        self_signed()


def test_nothing_of_the_key_is_left(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert isinstance(self_signed(), WatchedContext)
    assert list(tmp_path.iterdir()) == []
