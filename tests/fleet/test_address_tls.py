"""Engines behind TLS and on Unix sockets, as the fleet sees them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import uvloop

from gateway.core.clock import SystemClock
from gateway.core.observer import NULL_OBSERVER
from gateway.core.tls import follow
from gateway.errors import ConfigError
from gateway.fleet.address import Address, TlsContexts
from gateway.fleet.engine_client import ProbeFailed
from gateway.fleet.fleet import Fleet
from gateway.fleet.probe import EngineProbe
from gateway.fleet.settings import EndpointSettings, FleetSettings, TlsSettings
from gateway.framework.fleet import Model
from gateway.http1.pool import Pool
from tests.fleet.conftest import tiny
from tests.support.fleet import engines_of
from tests.support.tls import Authority
from tests.support.wait import eventually
from tests.support.wire import Connection, ScriptedServer, answer

Ask = Callable[..., Awaitable[tuple[str, str] | None]]


@contextlib.asynccontextmanager
async def asking() -> AsyncIterator[Ask]:
    """Gives the reason and the detail of what goes wrong with a question to a URL, or None."""
    contexts = TlsContexts()
    with contextlib.closing(Pool(SystemClock())) as pool:

        async def asked(url: str, **tls: Any) -> tuple[str, str] | None:
            settings = EndpointSettings(url, tls=TlsSettings(**tls) if tls else None)
            address = Address.of(settings, contexts)
            probe = EngineProbe(pool, address, "s3cret", 10, lambda _: None)
            try:
                await probe.models()
            except ProbeFailed as failure:
                return failure.reason, failure.detail
            return None

        yield asked


@pytest.fixture
async def ask() -> AsyncIterator[Ask]:
    async with asking() as asked:
        yield asked


async def test_an_engine_with_a_certificate_of_our_own_authority(engines, ask, authority):
    engine = await engines(tls=authority.serving())
    assert await ask(engine.url, ca=authority.file) is None
    assert engine.keys == ["Bearer s3cret"]
    assert await ask(engine.url, verify=False) is None


async def test_a_certificate_that_is_not_believed(engines, ask, authority, tmp_path):
    engine = await engines(tls=authority.serving())
    other = Authority(tmp_path, "other")
    reason, detail = await ask(engine.url, ca=other.file)
    assert (reason, detail.partition(":")[0]) == ("tls", "certificate verify failed")
    reason, detail = await ask(engine.url)
    assert (reason, detail.partition(":")[0]) == ("tls", "certificate verify failed")
    # Nothing was sent, and least of all the key.
    assert engine.asked == []


async def test_the_name_in_a_certificate(engines, ask, authority):
    engine = await engines(tls=authority.serving("server", "engine.internal"))
    reason, detail = await ask(engine.url, ca=authority.file)
    assert reason == "tls"
    assert "certificate is not valid for '127.0.0.1'" in detail
    assert await ask(engine.url, ca=authority.file, server_name="engine.internal") is None


async def test_an_engine_that_asks_for_our_certificate(engines, ask, authority, tmp_path):
    engine = await engines(tls=authority.asking(authority.serving()))
    certificate, key = authority.issue("client", "kvgate.internal")
    assert await ask(engine.url, ca=authority.file, certificate=certificate, key=key) is None
    stranger, strange_key = Authority(tmp_path, "other").issue("stranger", "kvgate.internal")
    for shown in ({}, {"certificate": stranger, "key": strange_key}):
        reason, _ = await ask(engine.url, ca=authority.file, **shown) or ("", "")
        assert reason in ("tls", "reset")  # whether it has said why, and that came before the end
    assert len(engine.asked) == 1


async def test_an_engine_that_says_why_it_closes(ask, authority):
    """As nginx and Envoy do."""
    context = authority.asking(authority.serving())

    async def refuse(connection: Connection) -> None:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        ours = context.wrap_bio(incoming, outgoing, server_side=True)
        for least in (1, 200):  # its hello; then its empty certificate, and the request behind it
            said = b""
            while len(said) < least:
                said += await connection.reader.read(65536)
            incoming.write(said)
            with contextlib.suppress(ssl.SSLError):
                ours.do_handshake()
            await connection.say(outgoing.read())
        await connection.gone()

    async with ScriptedServer(refuse) as server:
        url = server.url.replace("http:", "https:")
        assert await ask(url, ca=authority.file) == ("tls", "tlsv13 alert certificate required")


async def test_http_where_https_was_meant_and_the_other_way_round(engines, ask, authority):
    async def speaks_http(connection: Connection) -> None:
        await connection.reader.read(1024)
        await connection.say(answer(b"", status="400 Bad Request"))

    secure = await engines(tls=authority.serving())
    async with ScriptedServer(speaks_http) as plain:
        reason, detail = await ask(plain.url.replace("http:", "https:"), ca=authority.file)
    assert reason == "tls"
    assert "wrong version number" in detail or "record layer failure" in detail
    assert (await ask(secure.url.replace("https:", "http:")) or ("",))[0] in ("reset", "garbage")


async def test_an_engine_on_a_unix_socket(engines, ask, tmp_path):
    engine = await engines(path=str(tmp_path / "engine.sock"))
    assert engine.url.startswith("unix:///")
    assert await ask(engine.url) is None
    await engine.stop()
    assert (await ask(engine.url) or "")[0] == "refused"  # whether or not the engine took its file along


async def test_a_unix_socket_that_is_not_there_or_may_not_be_used(ask, tmp_path):
    assert await ask(f"unix://{tmp_path}/none.sock") == ("refused", "No such file or directory")
    (tmp_path / "file").touch()
    assert (await ask(f"unix://{tmp_path}/file") or "")[0] == "refused"


async def test_an_engine_on_ipv6(engines, ask):
    engine = await engines(host="::1")
    assert engine.url.startswith("http://[::1]:")
    assert await ask(engine.url) is None
    assert engine.hosts == [engine.url.removeprefix("http://")]


async def test_a_fleet_watches_both_kinds(engines, fleets, seen, authority, model, tmp_path):
    secure = await engines(tls=authority.serving())
    local = await engines(path=str(tmp_path / "e.sock"), kv_sources={"0": {"endpoint": "tcp://*:5557"}})
    tls = TlsSettings(ca=authority.file)
    fleet = await fleets((model, [EndpointSettings(secure.url, tls=tls), EndpointSettings(local.url)]))
    endpoints = fleet.endpoints(model)
    await eventually(lambda: [e.engine.up for e in endpoints] == [True, True], "both are up")
    assert [e.name for e in endpoints] == [f"127.0.0.1:{secure.port}", f"unix:{local.path}"]
    assert [e.engine.url for e in endpoints] == [secure.url, local.url]
    addresses = [e.engine.address for e in endpoints]
    assert [(a.host, a.port, a.socket) for a in addresses] == [("127.0.0.1", secure.port, None), ("", 0, local.path)]
    assert addresses[0].ssl is not None
    # Its events are on this machine, too.
    told = [said[2] for said in seen.told if said[:2] == ("source", endpoints[1].name)]
    assert [source.address for source in told] == ["tcp://127.0.0.1:5557"]


async def test_a_wrong_authority_takes_the_engine_out_and_the_log_says_why(
    engines, fleets, authority, model, tmp_path, caplog
):
    engine = await engines(tls=authority.serving())
    wrong = EndpointSettings(engine.url, tls=TlsSettings(ca=Authority(tmp_path, "other").file))
    fleet = await fleets((model, [wrong]))
    (endpoint,) = fleet.endpoints(model)
    await eventually(lambda: endpoint.engine.down_reason == "tls", "it is down for its certificate")
    said = [record.message for record in caplog.records if "is down" in record.message]
    assert said[-1].startswith(f"engine 127.0.0.1:{engine.port} is down: tls (certificate verify failed: ")
    # A change of the configuration cures it, and the endpoint is the same one.
    right = EndpointSettings(engine.url, tls=TlsSettings(ca=authority.file))
    before = endpoint.engine.address
    fleet.apply(await fleet.prepare([(model, [right])]))
    await eventually(lambda: endpoint.engine.up, "it is up")
    assert fleet.endpoints(model) == (endpoint,)
    assert endpoint.engine.address != before


def fleet_of(*models) -> Fleet:
    return Fleet(models, FleetSettings(), SystemClock(), NULL_OBSERVER, Random(1))


def test_a_file_that_cannot_be_used_stops_the_start(tmp_path):
    missing = f"{tmp_path}/ca.pem"
    with pytest.raises(ConfigError) as caught:
        fleet_of((Model("m"), [EndpointSettings("https://e:1", tls=TlsSettings(ca=missing))]))
    assert caught.value.message == f"endpoint https://e:1: tls.ca: {missing} cannot be read: No such file or directory"


async def test_a_file_that_cannot_be_used_stops_a_change(fleets, engines, authority, model, tmp_path):
    engine = await engines(tls=authority.serving())
    fleet = await fleets((model, [EndpointSettings(engine.url, tls=TlsSettings(ca=authority.file))]))
    (endpoint,) = fleet.endpoints(model)
    address = endpoint.engine.address
    with pytest.raises(ConfigError, match=r"tls\.certificate: .*missing cannot be read"):
        await fleet.prepare(
            [(model, [EndpointSettings(engine.url, tls=TlsSettings(certificate=f"{tmp_path}/missing"))])]
        )
    assert fleet.endpoints(model) == (endpoint,)
    assert endpoint.engine.address is address


def test_models_on_one_engine_agree_about_its_tls(authority):
    one, other = Model("one"), Model("other")
    tls = TlsSettings(ca=authority.file)
    with_tls, without = EndpointSettings("https://e:1", tls=tls), EndpointSettings("https://E:1/")
    fleet = fleet_of((one, [without]), (other, [with_tls]))
    (engine,) = engines_of(fleet)
    assert engine.address == Address.of(with_tls, fleet._registry.tls_contexts)
    with pytest.raises(ConfigError, match="model other: endpoint https://e:1 has another tls than with another model"):
        fleet_of((one, [with_tls]), (other, [EndpointSettings("https://e:1", tls=TlsSettings(verify=False))]))


async def test_an_address_outlives_its_engine(fleets, engines, model, authority):
    engine = await engines(tls=authority.serving())
    fleet = await fleets((model, [EndpointSettings(engine.url, tls=TlsSettings(ca=authority.file))]))
    (endpoint,) = fleet.endpoints(model)
    address = endpoint.engine.address
    fleet.apply(await fleet.prepare([]))
    assert engines_of(fleet) == []
    assert endpoint.engine.address is address


async def test_a_renewed_client_certificate_is_shown_to_the_engine(engines, fleets, authority, model, monkeypatch):
    monkeypatch.setattr("gateway.core.tls.LOOK", 0.02)
    engine = await engines(tls=authority.asking(authority.serving()))
    certificate, key = authority.issue("client", "old.internal")
    tls = TlsSettings(ca=authority.file, certificate=certificate, key=key)
    fleet = await fleets((model, [EndpointSettings(engine.url, tls=tls)]))
    (watched,) = fleet._registry.tls_contexts.all()
    made = watched.context
    authority.issue("client", "new.internal")
    await eventually(lambda: watched.context is not made, "the files were read again")
    assert engines_of(fleet)[0].address.ssl is watched.context


async def test_the_next_question_goes_by_the_files_that_were_read_again(engines, authority, tmp_path):
    """Over a connection that was made with them, though the kept one would do."""
    engine, contexts, connects = await engines(tls=authority.serving()), TlsContexts(), []
    settings = EndpointSettings(engine.url, tls=TlsSettings(ca=authority.file))
    address = Address.of(settings, contexts)
    with contextlib.closing(Pool(SystemClock())) as pool:
        probe = EngineProbe(pool, address, None, 10, connects.append)
        await probe.models()
        await probe.models()
        assert len(connects) == 1
        shutil.copyfile(Authority(tmp_path, "other").file, authority.file)
        (watched,) = contexts.all()
        await watched.look()
        with pytest.raises(ProbeFailed, match="tls"):
            await probe.models()


async def test_an_authority_that_is_written_while_it_is_read_is_looked_at_again(authority, monkeypatch, caplog):
    """The looking goes on, and what is written in the end is what is believed."""
    contexts = TlsContexts()
    watched = contexts.of(TlsSettings(ca=authority.file))
    made, load = watched.context, ssl.SSLContext.load_verify_locations
    good = authority.made.cert_pem.bytes()

    def write(content: bytes) -> None:
        Path(authority.file).write_bytes(content)

    def load_and_spoil(self: ssl.SSLContext, cafile: str) -> None:
        load(self, cafile=cafile)
        write(b"")

    def told() -> list[str]:
        return [record.message for record in caplog.records if record.levelno >= logging.ERROR]

    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", load_and_spoil)
    write(good + b"\n")
    following = asyncio.create_task(follow(contexts.all, pause=0.01))
    try:
        await eventually(lambda: told() or following.done(), "it is told")
        assert not following.done()
        assert told()[0].endswith("holds no certificate in PEM; what was there before stays in use")
        monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", load)
        spoiled = watched.context
        write(good + b"\n\n")
        await eventually(lambda: watched.context not in (made, spoiled), "the file is read again")
        assert len(watched.context.get_ca_certs()) == 1
    finally:
        following.cancel()


async def _on_any_loop(authority: Authority, other: Authority, folder: Path) -> None:
    secure = await tiny(tls=authority.serving("secure")).start()
    strict = await tiny(tls=authority.asking(authority.serving("strict"))).start()
    local = await tiny(path=f"{folder}/local.sock").start()
    certificate, key = authority.issue("client", "kvgate.internal")
    async with asking() as ask:
        assert await ask(secure.url, ca=authority.file) is None
        assert (await ask(secure.url, ca=other.file) or "")[0] == "tls"
        assert await ask(strict.url, ca=authority.file, certificate=certificate, key=key) is None
        assert (await ask(strict.url, ca=authority.file) or "")[0] in ("tls", "reset")
        assert await ask(local.url) is None
        assert (await ask(f"unix://{folder}/none.sock") or "")[0] == "refused"
    for engine in (secure, strict, local):
        await engine.stop()


def test_the_same_on_uvloop(authority, tmp_path):
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_on_any_loop(authority, Authority(tmp_path, "other"), tmp_path))
