"""Covers: gateway/commands/keys/run.py, gateway/commands/keys/options.py, gateway/commands/keys/remote.py.

``kvgate keys``, on a file, on a real Valkey, and through a running gateway.
"""

from __future__ import annotations

import asyncio
import hashlib
import http.server
import json
import threading

import httpx
import pytest

from gateway.cli import main
from gateway.commands.keys.run import TOKEN
from gateway.commands.processes import START_SECONDS
from gateway.tenants.settings import TenantSettings, TenantsSettings
from tests.support.chat import CHAT
from tests.support.engines import simulated
from tests.support.gateway import config_for, running
from tests.support.processes import KVGATE, lines, terminated, url_of
from tests.support.valkey import needs_valkey, valkey

ADMIN = "a-token-of-operators"


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "plugins.yaml"
    path.write_text(
        "models: [{name: sim, endpoints: [{url: 'http://127.0.0.1:1'}]}]\n"
        "tenants: {file: tenants.yaml, tenants: [{name: own}]}\n"
    )
    return path


def keys(capsys, *arguments) -> tuple[int, str, str]:
    code = main(["keys", *map(str, arguments)])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_a_key_s_life_in_a_file(config, capsys):
    file = config.parent / "tenants.yaml"
    code, key, said = keys(capsys, "add", config, "--tenant", "own", "--id", "ci", "--expires", "30d")
    assert (code, key[:4], len(key.split())) == (0, "kvg-", 1), "a script takes it from stdout"
    assert "the key ci of own, until 2" in said
    assert hashlib.sha256(key.strip().encode()).hexdigest() in file.read_text()
    assert key.strip() not in said + file.read_text()

    code, other, _ = keys(capsys, "rotate", config, "ci", "--keep", "1h")
    assert (code, other == key) == (0, False)
    code, listed, _ = keys(capsys, "list", config)
    rows = [line.split() for line in listed.splitlines()]
    assert rows[0] == ["id", "tenant", "expires", "models", "sha256", "source"]
    assert [row[:2] for row in rows[1:]] == [["ci", "own"]] * 2
    assert "kvg-" not in listed

    assert keys(capsys, "revoke", config, "ci")[0] == 0
    assert json.loads(keys(capsys, "list", config, "--json")[1]) == []


def test_models_and_tenants_are_chosen(config, capsys):
    keys(capsys, "add", config, "--tenant", "red", "--create-tenant", "--models", "qwen*, llama")
    keys(capsys, "add", config, "--tenant", "own")
    [red] = json.loads(keys(capsys, "list", config, "--tenant", "red", "--json")[1])
    assert (red["tenant"], red["models"]) == ("red", ["qwen*", "llama"])
    assert len(keys(capsys, "list", config)[1].splitlines()) == 3


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["add", "--tenant", "red"], 1, "There is no tenant 'red'"),
        (["add", "--tenant", "own", "--expires", "soon"], 1, "expires must be"),
        (["revoke", "none"], 1, "There is no key 'none'"),
        (["rotate", "none"], 1, "There is no key 'none'"),
    ],
)
def test_what_is_wrong_is_said(config, capsys, arguments, code, said):
    verb, *rest = arguments
    found = keys(capsys, verb, config, *rest)
    assert (found[0], said in found[2]) == (code, True), found


def test_where_keys_are_must_be_known(config, capsys, monkeypatch):
    monkeypatch.delenv(TOKEN, raising=False)
    assert "give a CONFIG, or the --url" in keys(capsys, "list")[2]
    assert f"set {TOKEN}" in keys(capsys, "list", "--url", "http://127.0.0.1:1")[2]
    assert "must begin with http" in keys(capsys, "list", "--url", "here", "--token", "x")[2]
    config.write_text("models: [{name: sim, endpoints: [{url: 'http://127.0.0.1:1'}]}]\n")
    code, _, said = keys(capsys, "add", config, "--tenant", "own")
    assert (code, "keys have no place" in said) == (2, True)
    assert keys(capsys, "list", config)[0] == 0


async def remotely(capsys, *arguments) -> tuple[int, str, str]:
    return await asyncio.to_thread(keys, capsys, *arguments)


async def test_a_running_gateway_does_it_too(tmp_path, capsys, monkeypatch):
    file = tmp_path / "tenants.yaml"
    file.touch()
    settings = TenantsSettings(file=str(file), admin_token=ADMIN, tenants=(TenantSettings("own"),))
    async with running(config_for("http://127.0.0.1:1", tenants=settings)) as gateway:
        url = ("--url", gateway.admin_url)
        assert "A valid token is needed" in (await remotely(capsys, "list", *url, "--token", "wrong"))[2]
        monkeypatch.setenv(TOKEN, ADMIN)
        code, key, _ = await remotely(capsys, "add", "--tenant", "own", "--id", "ci", *url)
        assert (code, key[:4]) == (0, "kvg-")
        assert (await remotely(capsys, "rotate", "ci", *url, "--json"))[0] == 0
        assert (await remotely(capsys, "list", *url))[1].count("ci") == 2
        assert (await remotely(capsys, "revoke", "ci", *url))[0] == 0
        code, _, said = await remotely(capsys, "revoke", "ci", *url)
        assert (code, "There is no key 'ci'" in said) == (1, True)
    assert "does not answer" in (await remotely(capsys, "list", *url))[2]


async def test_a_gateway_that_serves_takes_what_is_made_beside_it(tmp_path, capsys, processes):
    """As processes, as an operator does it: one serves, the other writes the file. And no key is in the log."""
    async with simulated() as server, httpx.AsyncClient(timeout=30) as client:
        config = tmp_path / "plugins.yaml"
        config.write_text(
            "listen: {port: 0, admin: '127.0.0.1:0', lame_duck: 0}\nlog: {level: debug}\n"
            f"models: [{{name: sim, endpoints: [{{url: '{server.url}'}}]}}]\ntenants: {{file: tenants.yaml}}\n"
        )
        first = (await remotely(capsys, "add", config, "--tenant", "red", "--id", "one", "--create-tenant"))[1].strip()
        process = processes.start("gateway", [*KVGATE, "serve", str(config)])
        url = await url_of(process)

        async def status(key: str) -> int:
            headers = {"Authorization": f"Bearer {key}"}
            return (await client.post(f"{url}/v1/chat/completions", json=CHAT, headers=headers)).status_code

        async def becomes(key: str, wanted: int) -> None:
            async with asyncio.timeout(START_SECONDS):
                while await status(key) != wanted:  # noqa: ASYNC110 -- the file is looked at once a second
                    await asyncio.sleep(0.05)

        assert await status(first) == 200
        second = (await remotely(capsys, "add", config, "--tenant", "red", "--id", "two"))[1].strip()
        await becomes(second, 200)
        await remotely(capsys, "revoke", config, "one")
        await becomes(first, 401)
        assert await status(second) == 200
        assert await terminated(process) == 0
        log = "\n".join(lines(process))
        assert "kvg-" not in log
        assert "read again" in log


class Other(http.server.BaseHTTPRequestHandler):
    """What is no gateway."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<html>")

    def log_message(self, *_: object) -> None: ...


def test_what_is_no_gateway_is_said_so(capsys):
    with http.server.HTTPServer(("127.0.0.1", 0), Other) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        assert "no admin listener of kvgate" in keys(capsys, "list", "--url", url, "--token", "x")[2]
        server.shutdown()


@needs_valkey
async def test_keys_in_valkey(tmp_path, config, capsys):
    async with valkey(tmp_path) as server:
        config.write_text(
            "models: [{name: sim, endpoints: [{url: 'http://127.0.0.1:1'}]}]\n"
            f"tenants: {{valkey: {{url: '{server.settings.url}'}}, tenants: [{{name: own}}]}}\n"
        )
        code, key, _ = await remotely(capsys, "add", config, "--tenant", "own", "--id", "ci")
        assert (code, key[:4]) == (0, "kvg-")
        assert (await remotely(capsys, "list", config))[1].count("ci") == 1
        assert (await remotely(capsys, "revoke", config, "ci"))[0] == 0
    code, _, said = await remotely(capsys, "list", config)
    assert (code, "Valkey cannot be reached" in said) == (1, True)
