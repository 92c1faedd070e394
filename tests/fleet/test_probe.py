"""The questions of a probe, on real sockets."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import socket

import pytest

from gateway.core.clock import SystemClock
from gateway.fleet.address import Address, TlsContexts
from gateway.fleet.engine_client import ProbeFailed
from gateway.fleet.probe import MAX_JSON, MAX_METRICS, MAX_MODELS, EngineProbe
from gateway.fleet.scrape import read
from gateway.fleet.settings import EndpointSettings
from gateway.framework.fleet import ServedModel
from gateway.http1.pool import Pool
from tests.fleet.conftest import hangs, says
from tests.support.wire import STREAM_HEAD, Connection, ScriptedServer, answer, chunked, header_in

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio", "uvloop"])


@pytest.fixture
async def pool():
    pool = Pool(SystemClock())
    yield pool
    pool.close()


@pytest.fixture
def connects():
    return []


@pytest.fixture
def probe(pool, connects):
    def make(url: str, key: str | None = None, timeout: float = 5.0) -> EngineProbe:
        address = Address.of(EndpointSettings(url), TlsContexts())
        return EngineProbe(pool, address, key, timeout, connects.append)

    return make


async def reason(coroutine) -> str:
    with pytest.raises(ProbeFailed) as caught:
        await coroutine
    return caught.value.reason


async def test_what_a_good_engine_says(engines, probe, connects):
    engine = await engines(running=3, kv_sources={"0": {"endpoint": "tcp://*:5557"}})
    asking = probe(engine.url)
    scrape = read(await asking.metrics())
    assert scrape is not None
    assert scrape.engines["0"].running == 3
    await asking.check_health()
    assert await asking.models() == {"tiny": ServedModel("tiny")}
    assert await asking.version() == "0.32.0"
    assert await asking.kv_sources() == {"0": {"endpoint": "tcp://*:5557"}}
    # One connection for all of it, and its round trip was measured.
    assert len(connects) == 1
    assert 0 < connects[0] < 5


async def test_the_real_list_of_models(engines, probe, data):
    engine = await engines(faults={"/v1/models": says((data / "models.json").read_bytes())})
    assert await probe(engine.url).models() == {"tiny": ServedModel("tiny", root="/models/tiny", max_model_len=4096)}


async def test_adapters_have_a_parent(engines, probe):
    engine = await engines(models=[{"id": "base"}, {"id": "sql", "parent": "base", "root": "/lora/sql"}])
    models = await probe(engine.url).models()
    assert list(models) == ["base", "sql"]
    assert models["sql"] == ServedModel("sql", root="/lora/sql", parent="base")


async def test_old_engines_lack_routes(engines, probe):
    missing = says('{"detail": "Not Found"}', status=404)
    engine = await engines(faults={"/version": missing, "/health": missing})
    asking = probe(engine.url)
    await asking.check_health()
    assert await asking.version() is None
    assert await asking.kv_sources() is None


async def test_a_dead_engine_says_so(engines, probe):
    engine = await engines(faults={"/health": says("", status=503), "/metrics": says("", status=500)})
    assert await reason(probe(engine.url).check_health()) == "unhealthy"
    assert await reason(probe(engine.url).metrics()) == "status-500"


@pytest.mark.parametrize(
    "body", ["", "{", "[]", "7", "null", '{"data": 3}', "\x00", "[" * 100_000, '{"data": {"id": "a"}}', b"\xff\xfe"]
)
async def test_models_that_are_not_a_list_of_models(engines, probe, body):
    engine = await engines(faults={"/v1/models": says(body)})
    assert await reason(probe(engine.url).models()) == "garbage"


async def test_odd_entries_are_skipped(engines, probe):
    odd = [7, None, {}, {"id": 7}, {"id": ""}, {"id": "x" * 1000}, {"id": "ok", "root": 3, "max_model_len": True}]
    engine = await engines(faults={"/v1/models": says(json.dumps({"data": odd}))})
    assert await probe(engine.url).models() == {"ok": ServedModel("ok")}


async def test_endless_lists_are_cut(engines, probe):
    many = [{"id": str(n)} for n in range(MAX_MODELS + 10)]
    engine = await engines(faults={"/v1/models": says(json.dumps({"data": many}))})
    assert len(await probe(engine.url).models()) == MAX_MODELS


@pytest.mark.parametrize("body", ["", "[]", '{"version": 3}', "{"])
async def test_a_version_that_is_none(engines, probe, body):
    engine = await engines(faults={"/version": says(body), "/kv_event_sources": says("[1]")})
    assert await probe(engine.url).version() is None
    assert await probe(engine.url).kv_sources() == {}


async def test_bodies_are_bounded(engines, probe):
    engine = await engines(
        faults={"/metrics": says(b"x" * (MAX_METRICS + 1)), "/v1/models": says(b" " * (MAX_JSON + 1))}
    )
    assert await reason(probe(engine.url).metrics()) == "too-large"
    assert await reason(probe(engine.url).models()) == "too-large"


async def test_nothing_is_decompressed(engines, probe):
    bomb = gzip.compress(b"0" * 50_000_000)
    engine = await engines(faults={"/v1/models": says(bomb, **{"content-encoding": "gzip"})})
    assert await reason(probe(engine.url).models()) == "garbage"


async def test_a_connection_that_is_refused(probe):
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{reserved.getsockname()[1]}"
        assert await reason(probe(url).metrics()) == "refused"


async def test_a_host_that_does_not_exist(probe):
    assert await reason(probe("http://engine.invalid:8000").metrics()) == "dns"


async def test_an_engine_that_hangs(engines, probe):
    engine = await engines(faults={"/metrics": hangs})
    assert await reason(probe(engine.url, timeout=0.05).metrics()) == "timeout"


async def test_an_engine_that_trickles(engines, probe):
    async def trickle(connection: Connection, head: bytes) -> None:
        await connection.say(STREAM_HEAD)
        while True:
            await connection.say(chunked(b"# more\n", end=False))
            await asyncio.sleep(0.01)

    engine = await engines(faults={"/metrics": trickle})
    assert await reason(probe(engine.url, timeout=0.1).metrics()) == "timeout"


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (b"", {"reset"}),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nshort", {"reset"}),
        (b"\x16\x03\x01 what is this\r\n\r\n", {"garbage"}),
        (b"HTTP/1.1 200 OK\r\ncontent-length: many\r\n\r\n", {"garbage"}),
        (b"HTTP/1.1 200 OK\r\nx: " + b"y" * 200_000 + b"\r\n\r\n", {"garbage"}),
        (
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\nrubbish",
            {"garbage", "reset"},
        ),  # whether the head was taken before the rest came
    ],
)
async def test_answers_that_are_not_http(probe, payload, expected):
    async def script(connection: Connection) -> None:
        await connection.head()
        await connection.say(payload)

    async with ScriptedServer(script) as server:
        assert await reason(probe(server.url).metrics()) in expected


async def test_a_key_goes_to_its_engine_only(engines, probe, caplog):
    caplog.set_level(logging.DEBUG)
    other = await engines()
    engine = await engines(key="s3cret", faults={"/version": says("", status=307, location=f"{other.url}/version")})
    asking = probe(engine.url, "s3cret")
    assert await asking.models() == {"tiny": ServedModel("tiny")}
    assert await reason(asking.version()) == "status-307"
    await probe(other.url).models()
    assert set(engine.keys) == {"Bearer s3cret"}
    assert other.keys == [None]
    assert await reason(probe(engine.url, "wr0ng").models()) == "status-401"
    assert "s3cret" not in caplog.text
    assert "wr0ng" not in caplog.text


async def test_neither_environment_nor_cookies_steer_a_probe(engines, probe, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    seen = []

    async def cookies(connection: Connection, head: bytes) -> None:
        seen.append(header_in(head, b"cookie"))
        await connection.say(answer(b"{}", extra=b"set-cookie: a=b\r\n"))

    engine = await engines(faults={"/kv_event_sources": cookies})
    for _ in range(2):
        await probe(engine.url).kv_sources()
    assert seen == [None, None]
