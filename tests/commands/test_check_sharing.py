from __future__ import annotations

import pytest

from gateway.commands.check_sharing import of_sharing
from gateway.config.load import loads
from tests.support.valkey import needs_valkey, valkey

MODELS = "models: [{name: sim, endpoints: [{url: 'http://a:1'}]}]\n"
NOWHERE = "redis://:secret@127.0.0.1:1"


async def found(text: str) -> tuple[list[str], list[str]]:
    return await of_sharing(loads(MODELS + text, {}))


async def test_of_a_gateway_that_decides_alone_there_is_nothing_to_say():
    assert await found("") == ([], [])


@pytest.mark.parametrize(
    ("url", "lacks"),
    [
        ("redis://10.255.255.1:1", "without a password and TLS"),
        ("valkey://:x@kvgate.invalid:1", "without TLS"),
        ("valkeys://kvgate.invalid:1", "without a password:"),
        ("rediss://:x@kvgate.invalid:1", ""),
        ("redis://127.0.0.1:1", ""),
        ("redis://localhost:1", ""),
        ("unix:///run/none.sock", ""),
    ],
)
async def test_an_open_server_is_warned_of(url, lacks, monkeypatch):
    monkeypatch.setattr("gateway.valkey.client.TIMEOUT", 0.2)
    warnings, _ = await found(f"sharing: {{url: '{url}'}}\n")
    of_access = [one for one in warnings if "without" in one]
    assert len(of_access) == bool(lacks)
    assert all(lacks in one for one in of_access)


async def test_a_server_that_cannot_be_reached_is_warned_of_without_its_password():
    warnings, _ = await found(f"sharing: {{url: '{NOWHERE}'}}\n")
    assert "cannot be reached" in warnings[-1]
    assert "secret" not in "".join(warnings)


async def test_keys_in_files_are_warned_of():
    warnings, _ = await found(f"sharing: {{url: '{NOWHERE}'}}\ntenants: {{file: none.yaml}}\n")
    assert any("tenants.file is a file of each replica's own" in one for one in warnings)


@needs_valkey
async def test_what_is_shared_is_told(tmp_path):
    async with valkey(tmp_path) as server:
        url = server.settings.url
        warnings, notes = await found(f"sharing: {{url: '{url}', name: prod}}\ntenants: {{valkey: {{url: '{url}'}}}}\n")
    assert warnings == []
    assert "sharing.name is 'prod': the engines' loads" in notes[0]
    assert "tenants and keys" in notes[0]
    assert notes[1].startswith("not shared:")


@needs_valkey
async def test_a_server_that_is_a_replica_is_warned_of_where_it_can_be_known(tmp_path):
    async with valkey(tmp_path) as server:
        text = f"sharing: {{url: '{server.settings.url}'}}\n"
        await server.call("REPLICAOF", "127.0.0.1", "1")
        assert "the replica of another one" in (await found(text))[0][-1]
        await server.call("ACL", "SETUSER", "default", "-role")
        assert "the replica of another one" in (await found(text))[0][-1]
        await server.call("ACL", "SETUSER", "default", "-info")
        assert (await found(text))[0] == []
