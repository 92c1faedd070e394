"""Homes of stored responses, with a real server, and without."""

from __future__ import annotations

import random

import pytest

from gateway.core.clock import SystemClock
from gateway.sharing import homes as module
from gateway.sharing.homes import Homes
from gateway.valkey.link import Link
from tests.support.valkey import needs_valkey
from tests.support.wait import eventually

pytestmark = needs_valkey


@pytest.fixture
async def link(server):
    made = Link(server.settings.url, {}, SystemClock(), random.Random(1))
    made.start()
    await eventually(lambda: made.up, within=30.0)
    yield made
    await made.close()


async def test_what_one_notes_another_finds_for_a_day(server, link):
    Homes(link, "tests").note("resp_1", "http://engine:8000")
    assert await Homes(link, "tests").find("resp_1") == "http://engine:8000"
    assert await Homes(link, "tests").find("resp_2") is None
    assert await Homes(link, "others").find("resp_1") is None
    assert 86_000 < await server.call("TTL", "kvgate:tests:resp:resp_1") <= 86_400


async def test_what_is_no_url_is_not_taken(server, link):
    await server.call("SET", "kvgate:tests:resp:long", "x" * 5000)
    await server.call("LPUSH", "kvgate:tests:resp:list", "x")
    assert await Homes(link, "tests").find("long") is None
    assert await Homes(link, "tests").find("list") is None


async def test_nobody_waits_for_a_server_that_is_away(server, link, monkeypatch):
    monkeypatch.setattr(module, "LIMIT", 0.05)
    server.pause()
    homes = Homes(link, "tests")
    assert await homes.find("resp_1") is None
    server.go_on()
    assert await link.ask("PING") == b"PONG"
    await server.stop()
    await eventually(lambda: not link.up, within=30.0)
    homes.note("resp_1", "http://engine:8000")
    assert await homes.find("resp_1") is None
