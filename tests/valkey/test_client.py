"""Clients of all schemes, and what is said where none can be made."""

from __future__ import annotations

import sys

import pytest

from gateway.errors import ConfigError
from gateway.valkey.client import connect
from tests.support.valkey import needs_valkey, valkey


def test_without_the_client_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "redis.asyncio", None)
    with pytest.raises(ConfigError, match=r"pip install 'kvgate\[valkey\]'"):
        connect("redis://x")


@pytest.mark.parametrize("url", ["http://user:secret@x", "redis://:secret@x:port", "redis://x?socket_timeout=secret"])
def test_a_url_of_no_server_is_refused_without_its_secrets(url):
    with pytest.raises(ConfigError) as error:
        connect(url)
    assert "secret" not in str(error.value)


@needs_valkey
async def test_valkeys_own_scheme_is_that_of_redis(tmp_path):
    async with valkey(tmp_path, "--requirepass", "a-password") as server:
        client = connect(server.settings.url.replace("redis://", "valkey://"))
        assert await client.ping()
        await client.aclose()
    assert (
        connect("valkeys://x").connection_pool.connection_class
        is connect("rediss://x").connection_pool.connection_class
    )
