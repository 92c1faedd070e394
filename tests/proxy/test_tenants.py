"""Covers: gateway/proxy/http/server.py, gateway/proxy/serving/identify.py, gateway/proxy/serving/model_directory.py,
gateway/tenancy.py, gateway/tenants/sources.py.

Who a request is from, what it may use, and what of that reaches engines: over sockets, with keys in a file.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.config.settings import ModelSettings
from gateway.fleet.settings import EndpointSettings
from gateway.framework import Request
from gateway.proxy.settings import KeySettings
from gateway.tenants.settings import TenantKeySettings, TenantSettings, TenantsSettings
from tests.support.chat import CHAT, COMPLETE
from tests.support.gateway import Running, config_for, running
from tests.support.scripted_engine import ScriptedEngine
from tests.support.wait import eventually
from tests.support.wire import answer

CHAT_PATH = "/v1/chat/completions"

RED = TenantSettings("red", weight=2.0, bands=(-2, 2), models=("sim", "other*"))
BLUE = TenantSettings("blue", models=("sim",))


def digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def key(text: str, tenant: str = "red", **values: Any) -> TenantKeySettings:
    return TenantKeySettings(f"{tenant}-key", digest(text), tenant, **values)


def bearer(text: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {text}"}


class Served:
    """A gateway before one engine, what reached that, and the requests that were placed."""

    def __init__(self, gateway: Running, asked: list[bytes]) -> None:
        self.gateway, self.asked = gateway, asked
        self.placed: list[Request] = []

    async def post(self, headers: dict[str, str], **body: Any) -> Any:
        return await self.gateway.client.post(CHAT_PATH, json={**CHAT, **body}, headers=headers)


@contextlib.asynccontextmanager
async def served(monkeypatch=None, **changes: Any) -> AsyncIterator[Served]:
    asked: list[bytes] = []

    async def post(connection, head, body):
        asked.append(head.lower())
        await connection.say(answer(COMPLETE))

    async with ScriptedEngine(post) as server:
        config = config_for(server.url, aliases=("nick",), **changes)
        other = ModelSettings(name="other-2", endpoints=(EndpointSettings(url=server.url),))
        config = dataclasses.replace(config, models=(*config.models, other))
        async with running(config) as gateway:
            served = Served(gateway, asked)
            placer = gateway.gateway.reloading.wiring.director._placer
            place = placer.place

            def watched(call, *args):
                served.placed.append(call.request)
                return place(call, *args)

            placer.place = watched
            yield served


async def test_a_request_is_its_key_s_tenant_s():
    settings = TenantsSettings(tenants=(RED, BLUE), keys=(key("kvg-a"), key("kvg-b", "blue")))
    async with served(tenants=settings, client_keys=KeySettings(values=("old",))) as it:
        for text in ("kvg-a", "kvg-b", "old"):
            assert (await it.post(bearer(text))).status_code == 200
        assert [(one.tenant.name, one.tenant.weight) for one in it.placed] == [
            *(("red", 2.0), ("blue", 1.0), ("default", 1.0))
        ]
        assert (await it.post(bearer("kvg-c"))).status_code == 401
        assert len(it.asked) == 3
        assert not any(word in head for head in it.asked for word in (b"kvg-", b"authorization"))


async def test_the_priority_that_is_asked_for_is_held_within_the_tenant_s_bands():
    settings = TenantsSettings(tenants=(RED, BLUE), keys=(key("a"), key("b", "blue")), objectives={"batch": -1})
    async with served(tenants=settings) as it:
        await it.post(bearer("a"))
        await it.post({**bearer("a"), "x-kvgate-priority": "1"})
        await it.post({**bearer("a"), "x-kvgate-priority": "7"})
        await it.post({**bearer("a"), "x-llm-d-inference-objective": "batch"})
        await it.post(bearer("a"), priority=-1)
        await it.post({**bearer("b"), "x-kvgate-priority": "2"}, priority=-5)
        assert [one.band for one in it.placed] == [0, 1, 2, -1, 1, 0]
        assert not any(name in head for head in it.asked for name in (b"x-kvgate-priority", b"x-llm-d"))
        refused = await it.post({**bearer("a"), "x-kvgate-priority": "high"})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "x-kvgate-priority")


async def test_a_model_that_is_not_allowed_is_as_if_there_were_none():
    settings = TenantsSettings(
        tenants=(RED, BLUE), keys=(key("a"), key("b", "blue"), key("c", models=("other*", "nick")))
    )
    async with served(tenants=settings) as it:
        listed = {}
        for text in ("a", "b", "c"):
            models = await it.gateway.client.get("/v1/models", headers=bearer(text))
            listed[text] = [one["id"] for one in models.json()["data"]]
        assert listed == {"a": ["sim", "nick", "other-2"], "b": ["sim", "nick"], "c": ["nick", "other-2"]}, (
            "the tenant of c allows the alias by its model, and the key by its name"
        )
        assert (await it.post(bearer("a"), model="other-2")).status_code == 200
        denied, absent = [await it.post(bearer("b"), model=name) for name in ("other-2", "other-3")]
        assert denied.status_code == absent.status_code == 404
        assert denied.text == absent.text.replace("other-3", "other-2")
        assert "sim" not in (await it.post(bearer("c"), model="sin")).text, "nor is it the nearest name"
        one = await it.gateway.client.get("/v1/models/other-2", headers=bearer("b"))
        assert one.status_code == 404


async def test_a_trusted_header_names_the_tenant_and_goes_no_further():
    settings = TenantsSettings(header="X-Team", trusted=True, tenants=(RED,))
    async with served(tenants=settings) as it:
        for team in ("red", "green", ""):
            assert (await it.post({"x-team": team} if team else {})).status_code == 200
        assert [one.tenant.name for one in it.placed] == ["red", "green", "default"]
        assert not any("x-team" in one.headers for one in it.placed)
        assert not any(b"x-team" in head for head in it.asked)
        twice = await it.gateway.client.post(CHAT_PATH, json=CHAT, headers=[("x-team", "red"), ("X-Team", "green")])
        assert (twice.status_code, twice.json()["error"]["param"]) == (400, "x-team")


async def test_a_header_that_is_not_trusted_names_nobody_and_goes_no_further():
    async with served(tenants=TenantsSettings(header="x-team", tenants=(RED,))) as it:
        assert (await it.post({"X-Team": "red"})).status_code == 200
        assert it.placed[0].tenant.name == "default"
        assert b"x-team" not in it.asked[0]


async def test_where_nothing_is_configured_keys_are_nobody_s():
    async with served() as it:
        assert (await it.post(bearer("anything"))).status_code == 200
        assert (it.placed[0].tenant.name, it.placed[0].band) == ("default", 0)


FILE = """\
tenants:
- {name: red, weight: 2.0}
keys:
- {id: ci, sha256: %s, tenant: red}
"""


async def test_a_key_in_a_file_counts_until_it_is_gone_from_it(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("gateway.tenants.file.LOOK", 0.02)
    file = tmp_path / "tenants.yaml"
    file.write_text(FILE % digest("kvg-first"))
    settings = TenantsSettings(file=str(file))

    async def status(text: str) -> int:
        return (await it.post(bearer(text))).status_code

    async with served(tenants=settings) as it:
        tenants = it.gateway.gateway.rooms.sources.directory
        assert 'kvgate_keys_source_up{source="file"} 1' in await it.gateway.metrics()
        assert await status("kvg-first") == 200
        assert await status("kvg-second") == 401

        before = tenants.roster
        with caplog.at_level(logging.ERROR):
            file.write_text((FILE % digest("kvg-second"))[:-30])
            await eventually(lambda: "tenants.yaml:4" in caplog.text, "the half-written file is reported with its line")
        assert tenants.roster is before
        assert 'kvgate_keys_source_up{source="file"} 0' in await it.gateway.metrics()
        assert await status("kvg-first") == 200

        file.write_text(FILE % digest("kvg-second"))
        await eventually(lambda: tenants.roster is not before)
        assert (await status("kvg-first"), await status("kvg-second")) == (401, 200)

        file.write_text("")
        await eventually(lambda: not tenants.roster.entries)
        assert await status("kvg-second") == 401, "whoever revokes the last key lets nobody in"
        assert not any("kvg-" in (line.error or "") for line in it.gateway.lines)


async def test_a_reload_brings_other_keys_and_keeps_header_tenants(tmp_path):
    file = tmp_path / "tenants.yaml"
    file.write_text(FILE % digest("kvg-first"))
    settings = TenantsSettings(header="x-team", trusted=True, anonymous=True)
    async with served(tenants=settings) as it:
        await it.post({"x-team": "green"})
        known = it.gateway.gateway.rooms.sources.directory.named
        assert len(known) == 1
        config = it.gateway.gateway.config
        wanted = dataclasses.replace(config, tenants=dataclasses.replace(settings, file=str(file), anonymous=False))
        changes = (await it.gateway.reload(wanted)).json()["changes"]
        assert changes == ["tenants.file", "tenants.anonymous"]
        assert (await it.post(bearer("kvg-first"))).status_code == 200
        assert (await it.post({"x-team": "green"})).status_code == 401
        assert len(known) == 1

        file.write_text("keys: 5\n")
        reply = await it.gateway.reload()
        assert reply.status_code == 400
        assert "tenants.yaml:1: keys: expected a list" in reply.text
        assert (await it.post(bearer("kvg-first"))).status_code == 200

        await it.gateway.reload(dataclasses.replace(config, tenants=TenantsSettings()))
        assert (await it.post({})).status_code == 200


@pytest.mark.parametrize("body", [{"stream": True}, {}])
async def test_a_request_that_runs_ends_in_peace_when_its_key_goes(tmp_path, body):
    """Who is let in is asked once: nothing looks at the key again."""
    settings = TenantsSettings(tenants=(RED,), keys=(key("kvg-a"),))
    async with served(tenants=settings) as it:
        directory = it.gateway.gateway.rooms.sources.directory
        placer = it.gateway.gateway.reloading.wiring.director._placer
        place = placer.place

        def revoked(call, *args):
            it.gateway.gateway.rooms.sources.adopt(TenantsSettings(file="x"), (), None)
            return place(call, *args)

        placer.place = revoked
        assert (await it.post(bearer("kvg-a"), **body)).status_code == 200
        assert not directory.roster.entries
        assert (await it.post(bearer("kvg-a"), **body)).status_code == 401
