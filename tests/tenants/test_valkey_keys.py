"""Covers: gateway/tenants/valkey_keys.py, gateway/tenants/valkey_store.py, gateway/tenants/sources.py.

With a real server: what one gateway or command writes, all gateways know; and whatever happens to the server, requests
go on with what was last known.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import logging
from collections.abc import AsyncIterator

import pytest

from gateway.core.clock import SystemClock
from gateway.errors import ClientError, NotLoaded, Unauthorized
from gateway.tenants import valkey_keys
from gateway.tenants.changes import Change, StoreFailed, add, new_key, put_tenant, revoke, rotate
from gateway.tenants.settings import TenantKeySettings, TenantSettings, TenantsSettings, ValkeySettings
from gateway.tenants.sources import Sources
from gateway.tenants.valkey_keys import ValkeySource
from gateway.tenants.valkey_records import to_hash
from gateway.tenants.valkey_store import ValkeyStore
from gateway.valkey import client
from tests.support.valkey import ValkeyServer, needs_valkey, valkey
from tests.support.wait import eventually

pytestmark = needs_valkey


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Notices within a test's patience what takes seconds in production."""
    monkeypatch.setattr(valkey_keys, "LOOK", 0.05)
    monkeypatch.setattr(valkey_keys, "FIRST_PAUSE", 0.02)
    monkeypatch.setattr(valkey_keys, "LONGEST_PAUSE", 0.05)


@pytest.fixture
async def server(tmp_path):
    async with valkey(tmp_path) as running:
        yield running


def key(text: str, key_id: str = "ci", tenant: str = "red", **values) -> TenantKeySettings:
    return TenantKeySettings(key_id, hashlib.sha256(text.encode()).hexdigest(), tenant, **values)


def adding(text: str, key_id: str = "ci", **values):
    return add(key(text, key_id, **values), create_tenant=True)


@contextlib.asynccontextmanager
async def following(server: ValkeyServer) -> AsyncIterator[Sources]:
    settings = TenantsSettings(valkey=server.settings)
    sources = Sources(SystemClock(), settings, (), ValkeySource(server.settings))
    sources.start()
    try:
        yield sources
    finally:
        await sources.close()


def knows(sources: Sources, text: str) -> bool:
    try:
        return sources.directory.find(text, "").key is not None
    except (Unauthorized, NotLoaded):
        return False


async def loaded(sources: Sources) -> None:
    await eventually(lambda: sources.source.complete and not sources.source.problem)


async def test_what_is_written_is_known_and_what_is_revoked_is_not(server):
    store = ValkeyStore(server.settings)
    await store.change(adding("one"))
    async with following(server) as first, following(server) as second:
        for sources in (first, second):
            await loaded(sources)
            assert knows(sources, "one")
        await store.change(adding("two", "web"))
        await store.change(put_tenant(TenantSettings("red", weight=3.0)))
        for sources in (first, second):
            await eventually(lambda sources=sources: knows(sources, "two"))
            await eventually(lambda sources=sources: sources.directory.find("two", "").tenant.weight == 3.0)
        await store.change(revoke("ci"))
        for sources in (first, second):
            await eventually(lambda sources=sources: not knows(sources, "one"))
            assert knows(sources, "two")


async def test_two_keys_are_valid_while_one_replaces_the_other(server):
    store = ValkeyStore(server.settings)
    await store.change(adding("one"))
    text, sha256 = new_key()
    async with following(server) as sources:
        await loaded(sources)
        now = SystemClock().wall()
        await store.change(rotate("ci", sha256, now=now, keep=3600.0))
        await sources.look()
        assert knows(sources, "one")
        assert knows(sources, text)
        await store.change(rotate("ci", hashlib.sha256(b"third").hexdigest(), now=now, keep=-1.0))
        await sources.look()
        assert [knows(sources, one) for one in ("one", text, "third")] == [False, False, True]


async def test_while_the_server_is_away_the_last_known_state_goes_on(server, caplog, monkeypatch):
    tried: list[object] = []
    monkeypatch.setattr(valkey_keys, "connect", lambda url: tried.append(1) or client.connect(url))
    store = ValkeyStore(server.settings)
    await store.change(adding("one"))
    async with following(server) as sources:
        await loaded(sources)
        with caplog.at_level(logging.ERROR):
            await server.stop()
            await eventually(lambda: sources.source.problem)
        assert knows(sources, "one")
        assert not knows(sources, "two")
        with pytest.raises(Unauthorized):
            sources.directory.find("two", "")
        attempts = len(tried)
        await eventually(lambda: len(tried) > attempts + 3, "it is tried again and again")
        assert len(caplog.records) == 1, "they are reported once"
        with pytest.raises(StoreFailed, match="Valkey cannot be reached"):
            await store.change(adding("two", "web"))
        await server.start()
        await store.change(adding("two", "web"))
        await eventually(lambda: knows(sources, "two"), "it has found the server again")
        assert not sources.source.problem


async def test_a_server_that_hangs_is_noticed_and_followed_again(server, monkeypatch):
    store = ValkeyStore(server.settings)
    await store.change(adding("one"))
    # Before it follows: a look that has begun keeps the limit it began with.
    monkeypatch.setattr(client, "TIMEOUT", 0.5)
    async with following(server) as sources:
        await loaded(sources)
        server.pause()
        try:
            await eventually(lambda: sources.source.problem)
            assert knows(sources, "one")
        finally:
            server.go_on()
            monkeypatch.setattr(client, "TIMEOUT", 15.0)
        await store.change(adding("two", "web"))
        await eventually(lambda: knows(sources, "two"))


async def test_a_server_that_has_lost_its_data_takes_nobody_s_key(server, caplog):
    store = ValkeyStore(server.settings)
    await store.change(adding("one"))
    async with following(server) as sources:
        await loaded(sources)
        await server.call("FLUSHALL")
        await eventually(lambda: "has lost its tenants and keys" in sources.source.problem)
        assert knows(sources, "one")
        await store.change(adding("two", "web"))
        await eventually(lambda: knows(sources, "two"))
        assert not knows(sources, "one"), "there is content again, and this is not in it"


async def test_until_a_server_was_read_nobody_is_told_that_a_key_is_wrong(tmp_path):
    server = ValkeyServer(tmp_path)
    try:
        async with following(server) as sources:
            await eventually(lambda: sources.source.problem)
            with pytest.raises(NotLoaded):
                sources.directory.find("one", "")
            await server.start()
            await loaded(sources)
            with pytest.raises(Unauthorized):
                sources.directory.find("one", "")
    finally:
        await server.stop()


async def test_a_lost_announcement_is_made_up_for(server):
    store = ValkeyStore(server.settings)
    await store.change(adding("one"))
    async with following(server) as sources:
        await loaded(sources)
        values = [part for pair in to_hash(key("two", "web")).items() for part in pair]
        two = key("two").sha256
        await server.call("HSET", f"kvgate:tests:key:{two}", *values)
        await server.call("SADD", "kvgate:tests:keys", two)
        await server.call("INCR", "kvgate:tests:tenants-version")
        await eventually(lambda: knows(sources, "two"))


@pytest.mark.parametrize(
    "news", ["", "{", "5", '{"version": "x"}', '{"version": -7}', '{"version": 99}', "x" * 100_000]
)
async def test_what_is_no_announcement_does_no_harm(server, news):
    store = ValkeyStore(server.settings)
    await store.change(adding("one"))
    async with following(server) as sources:
        await loaded(sources)
        await server.call("PUBLISH", "kvgate:tests:tenants-changed", news)
        await store.change(adding("two", "web"))
        await eventually(lambda: knows(sources, "two"))
        assert knows(sources, "one")


async def test_an_entry_that_cannot_be_read_is_left_out(server, caplog):
    store = ValkeyStore(server.settings)
    await store.change(adding("one"))
    bad = key("bad").sha256
    await server.call("HSET", f"kvgate:tests:key:{bad}", "id", "bad", "tenant", "red", "sha256", "kvg-secret")
    await server.call("SADD", "kvgate:tests:keys", bad)
    with caplog.at_level(logging.ERROR):
        async with following(server) as sources:
            await loaded(sources)
            assert knows(sources, "one")
            assert not knows(sources, "bad")
    assert f"kvgate:tests:key:{bad[:8]} in Valkey is left out: sha256 must be" in caplog.text
    assert "kvg-secret" not in caplog.text


async def test_changes_at_the_same_time_are_all_made(server):
    async def one(number: int) -> None:
        while True:
            try:
                await ValkeyStore(server.settings).change(adding(str(number), f"k{number}"))
            except StoreFailed:  # too many at the same time
                continue
            return

    await asyncio.gather(*map(one, range(8)))
    content = await ValkeyStore(server.settings).read()
    assert {entry.id for entry in content.keys} == {f"k{number}" for number in range(8)}
    assert [tenant.name for tenant in content.tenants] == ["red"]


async def test_a_refusal_changes_nothing(server):
    store = ValkeyStore(server.settings)
    await store.change(adding("one"))
    with pytest.raises(ClientError):
        await store.change(adding("two"))
    assert await server.call("GET", "kvgate:tests:tenants-version") == "1"
    assert len((await store.read()).keys) == 1


async def test_scopes_do_not_see_each_other(server):
    await ValkeyStore(server.settings).change(adding("one"))
    other = dataclasses.replace(server.settings, scope="other")
    assert (await ValkeyStore(other).read()).keys == ()


async def test_a_password_is_used_and_not_shown(tmp_path, caplog):
    async with valkey(tmp_path, "--requirepass", "a-password") as server:
        await ValkeyStore(server.settings).change(adding("one"))
        async with following(server) as sources:
            await loaded(sources)
            assert knows(sources, "one")
            wrong = ValkeySettings(server.settings.url.replace("a-password", "a-wrong-one"), "tests")
            with caplog.at_level(logging.ERROR):
                sources.adopt(TenantsSettings(valkey=wrong), (), ValkeySource(wrong))
                await eventually(lambda: sources.source.problem)
            assert "a-wrong-one" not in caplog.text
            assert "cannot be read from Valkey" in caplog.text


async def test_a_server_is_asked_over_tls_and_has_to_prove_who_it_is(tmp_path, authority):
    server = ValkeyServer(tmp_path)
    server.speak_tls(*authority.issue("valkey"), authority.file)
    try:
        await server.start()
        await ValkeyStore(server.settings).change(adding("one"))
        async with following(server) as sources:
            await loaded(sources)
            assert knows(sources, "one")
        stranger = dataclasses.replace(server.settings, url=server.settings.url.partition("?")[0])
        with pytest.raises(StoreFailed, match="certificate verify failed"):
            await ValkeyStore(stranger).read()
    finally:
        await server.stop()


@pytest.mark.parametrize("turns", range(8))
async def test_it_ends_whenever_it_is_cancelled(server, turns):
    source = ValkeySource(server.settings)
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        following = tasks.create_task(source.follow(lambda: None))
        while not source.complete:  # noqa: ASYNC110 -- turn by turn
            await asyncio.sleep(0)
        for _ in range(turns):
            await asyncio.sleep(0)
        following.cancel()


async def test_ten_thousand_keys_are_all_read(server, monkeypatch):
    monkeypatch.setattr(client, "TIMEOUT", 100.0)  # a busy machine takes its time for so many at once
    many = tuple(key(str(number), f"k{number}") for number in range(10_000))
    await ValkeyStore(server.settings).change(lambda _: Change((TenantSettings("red"),), many))
    async with following(server) as sources:
        await loaded(sources)
        assert len(sources.directory.roster.entries) == 10_000
        assert knows(sources, "9999")


async def test_no_more_keys_are_kept_than_there_is_room_for(server, monkeypatch, caplog):
    monkeypatch.setattr(valkey_keys, "MOST", 3)
    many = tuple(key(str(number), f"k{number}") for number in range(5))
    await ValkeyStore(server.settings).change(lambda _: Change((TenantSettings("red"),), many))
    with caplog.at_level(logging.ERROR):
        async with following(server) as sources:
            await loaded(sources)
            assert len(sources.directory.roster.entries) == 3
    assert "Valkey has 5 keys, of which 3 are used" in caplog.text
