"""The operators' listener, for who is no operator's client."""

from __future__ import annotations

import asyncio
import logging

import pytest
from aiohttp import ClientSession, web

from gateway.proxy.admin.listener import Admin
from tests.support.gateway import config_for, running


@pytest.mark.parametrize(
    "said",
    [
        b"\x00\xffopen-sesame\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03open-sesame\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nHost: g\r\nopen sesame\x00\r\n\r\n",
        b"GET /metrics HTTP/9.9 open-sesame\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nHost: g\r\nX-Large: " + b"x" * 100_000 + b"\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: g\r\n\r\n\x00open-sesame\r\n\r\n",
    ],
)
async def test_what_is_not_http_is_one_line_of_log(said, caplog):
    caplog.set_level(logging.DEBUG)
    async with running(config_for("http://127.0.0.1:1")) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(gateway.admin_url.rpartition(":")[2]))
        writer.write(said)
        assert b" 400 " in await reader.read()
        writer.close()
        assert (await gateway.client.get(f"{gateway.admin_url}/livez")).status_code == 200
    refused = [record for record in caplog.records if "not valid HTTP" in record.getMessage()]
    assert [(record.name, record.levelname) for record in refused] == [("kvgate.admin", "INFO")]
    assert "sesame" not in caplog.text
    assert "Traceback" not in caplog.text


async def test_a_defect_keeps_its_traceback(caplog):
    async def render() -> tuple[bytes, str]:
        raise RuntimeError("a defect")

    runner = Admin(render).runner()
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        async with (
            ClientSession() as session,
            session.get(f"http://127.0.0.1:{runner.addresses[0][1]}/metrics") as reply,
        ):
            assert reply.status == 500
    finally:
        await runner.cleanup()
    [record] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert record.name == "kvgate.admin"
    assert "RuntimeError: a defect" in caplog.text
