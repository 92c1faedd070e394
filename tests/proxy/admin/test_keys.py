"""The admin API of keys and tenants, over sockets: with its token, and with clients that use what it makes."""

from __future__ import annotations

import contextlib
import logging

import pytest

from gateway.tenants.settings import TenantSettings, TenantsSettings, ValkeySettings
from tests.support.chat import CHAT, COMPLETE
from tests.support.gateway import config_for, running
from tests.support.scripted_engine import ScriptedEngine
from tests.support.valkey import needs_valkey, valkey
from tests.support.wait import eventually
from tests.support.wire import answer

TOKEN = "a-token-of-operators"
OPERATOR = {"Authorization": f"Bearer {TOKEN}"}
ROUTES = [
    *(("GET", "/keys"), ("POST", "/keys"), ("DELETE", "/keys/ci"), ("POST", "/keys/ci/rotate")),
    *(("GET", "/tenants"), ("GET", "/tenants/red"), ("PUT", "/tenants/red")),
]


class Operated:
    def __init__(self, gateway) -> None:
        self.gateway = gateway

    async def ask(self, method: str, path: str, body=None, headers=OPERATOR):
        return await self.gateway.client.request(method, self.gateway.admin_url + path, json=body, headers=headers)

    async def status(self, key: str) -> int:
        headers = {"Authorization": f"Bearer {key}"}
        return (await self.gateway.client.post("/v1/chat/completions", json=CHAT, headers=headers)).status_code


@contextlib.asynccontextmanager
async def operated(file=None, **values):
    async def post(connection, head, body):
        await connection.say(answer(COMPLETE))

    if file is not None:
        file.touch()
        values["file"] = str(file)
    settings = TenantsSettings(**{"admin_token": TOKEN, **values})
    async with ScriptedEngine(post) as server, running(config_for(server.url, tenants=settings)) as gateway:
        yield Operated(gateway)


@pytest.fixture
def file(tmp_path):
    return tmp_path / "tenants.yaml"


@pytest.mark.parametrize(("method", "path"), ROUTES)
async def test_without_a_token_it_is_closed_and_without_the_token_it_is_refused(file, method, path):
    async with operated(file, admin_token=None) as it:
        closed = await it.ask(method, path, {})
        assert closed.status_code == 403
        assert "set tenants.admin_token" in closed.json()["error"]["message"]
    async with operated(file) as it:
        for headers in ({}, {"Authorization": "Bearer a-token-of-operator"}, {"Authorization": "Basic x"}):
            assert (await it.ask(method, path, {}, headers)).status_code == 401
        from_a_page = await it.ask(method, path, {}, {**OPERATOR, "Origin": "http://elsewhere"})
        assert from_a_page.status_code == 403
    assert file.read_text() == ""


async def test_a_key_s_life(file, caplog):
    caplog.set_level(logging.DEBUG)
    async with operated(file) as it:
        made = await it.ask("POST", "/keys", {"tenant": "red", "id": "ci", "create_tenant": True, "expires": "30d"})
        assert made.status_code == 201
        first = made.json()["key"]
        assert await it.status(first) == 200, "it is in force at once"

        rotated = await it.ask("POST", "/keys/ci/rotate", {"keep": "1h"})
        second = rotated.json()["key"]
        assert (rotated.status_code, await it.status(first), await it.status(second)) == (201, 200, 200)

        listed = (await it.ask("GET", "/keys")).json()["keys"]
        assert [(key["id"], key["tenant"], key["expired"]) for key in listed] == [("ci", "red", False)] * 2

        assert (await it.ask("DELETE", "/keys/ci")).json() == {"id": "ci", "revoked": True}
        assert (await it.status(first), await it.status(second)) == (401, 401)
        assert (await it.ask("DELETE", "/keys/ci")).status_code == 404

        metrics = await it.gateway.metrics()
    seen = file.read_text() + caplog.text + metrics + str(listed)
    assert not any(secret in seen for secret in (first, second, TOKEN))


async def test_a_tenant_s_settings_are_in_force_at_once(file):
    async with operated(file, tenants=(TenantSettings("own"),)) as it:
        put = await it.ask("PUT", "/tenants/red", {"weight": 2, "models": ["sim"], "limits": {"concurrent": 5}})
        assert put.json() == {
            "name": "red",
            "weight": 2.0,
            "models": ["sim"],
            "limits": {"concurrent": 5},
            "source": str(file),
        }
        key = (await it.ask("POST", "/keys", {"tenant": "red"})).json()["key"]
        assert await it.status(key) == 200
        await it.ask("PUT", "/tenants/red", {"models": []})
        assert await it.status(key) == 404
        assert [one["name"] for one in (await it.ask("GET", "/tenants")).json()["tenants"]] == ["own", "red"]
        assert [one["tenant"] for one in (await it.ask("GET", "/tenants/red")).json()["keys"]] == ["red"]


async def test_an_operator_is_told_what_a_tenant_has_used(file):
    async with operated(file) as it:
        await it.ask("PUT", "/tenants/red", {"limits": {"concurrent": 5}, "budget": {"amount": 1000}})
        first = (await it.ask("POST", "/keys", {"tenant": "red", "id": "one"})).json()["key"]
        second = (await it.ask("POST", "/keys", {"tenant": "red", "id": "two"})).json()["key"]
        assert [await it.status(first), await it.status(second)] == [200, 200]
        await eventually(lambda: len(it.gateway.lines) == 2, "both have ended")
        shown = await it.ask("GET", "/tenants/red")
        used = shown.json()["used"]
        day = used["usage"]["day"]
        assert (used["tenant"], used["key"], day["requests"]) == ("red", None, 2), "of all its keys together"
        assert used["budget"]["spent"] == sum(day["tokens"].values()) > 0
        assert used["limits"][0]["concurrent"] == {"limit": 5, "remaining": 5}
        assert not any(key in shown.text for key in (first, second))


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "message"),
    [
        ("POST", "/keys", {}, 400, "tenant: this key is required"),
        ("POST", "/keys", {"tenant": "red"}, 400, "There is no tenant 'red'"),
        ("POST", "/keys", {"tenant": 5}, 400, "tenant: expected a string"),
        ("POST", "/keys", {"tenant": "own", "expirse": "1d"}, 400, "did you mean 'expires'?"),
        ("POST", "/keys", {"tenant": "own", "expires": "soon"}, 400, "expires must be"),
        ("POST", "/keys", [], 400, "must be an object"),
        ("POST", "/keys/none/rotate", {}, 404, "There is no key 'none'"),
        ("POST", "/keys/none/rotate", {"kep": "1d"}, 400, "may have keep"),
        ("POST", "/keys/none/rotate", {"keep": 5}, 400, "may have keep"),
        ("PUT", "/tenants/red", {"weight": -1}, 400, "weight must be above 0"),
        ("PUT", "/tenants/red", {"name": "blue"}, 400, "another one than in the path"),
        ("PUT", "/tenants/own", {}, 400, "stands in plugins.yaml"),
        ("PUT", "/tenants/two%20words", {}, 400, "name must be"),
        ("GET", "/tenants/red", None, 404, "There is no tenant 'red'"),
    ],
)
async def test_what_is_wrong_is_named_and_changes_nothing(file, method, path, body, status, message):
    async with operated(file, tenants=(TenantSettings("own"),)) as it:
        reply = await it.ask(method, path, body)
        assert (reply.status_code, message in reply.json()["error"]["message"]) == (status, True), reply.text
        too_much = await it.gateway.client.post(f"{it.gateway.admin_url}/keys", content=b"x" * 70_000, headers=OPERATOR)
        assert too_much.status_code == 413
    assert file.read_text() == ""


async def test_a_file_that_cannot_be_written_is_named(file):
    async with operated(file) as it:
        file.write_text("keys: [")
        reply = await it.ask("POST", "/keys", {"tenant": "default"})
        assert (reply.status_code, "correct the file first" in reply.text) == (503, True)


@needs_valkey
async def test_two_gateways_share_what_is_in_valkey(tmp_path):
    async with valkey(tmp_path) as server:
        shared = ValkeySettings(server.settings.url)
        async with operated(valkey=shared) as one, operated(valkey=shared) as other:
            await eventually(lambda: other.gateway.gateway.rooms.sources.source.complete)
            key = (await one.ask("POST", "/keys", {"tenant": "red", "id": "ci", "create_tenant": True})).json()["key"]
            assert await one.status(key) == 200
            directory = other.gateway.gateway.rooms.sources.directory
            await eventually(lambda: directory.roster.entries)
            assert await other.status(key) == 200
            await server.stop()
            assert await other.status(key) == 200
            assert await other.status("kvg-unknown") == 401
            assert (await other.ask("DELETE", "/keys/ci")).status_code == 503


async def test_keys_that_are_not_read_yet_are_not_called_wrong():
    async with operated(valkey=ValkeySettings("redis://127.0.0.1:1")) as it:
        assert await it.status("kvg-unknown") == 503
