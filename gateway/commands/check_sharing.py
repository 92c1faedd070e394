"""``kvgate check``: what a configuration shares between replicas, and what not; and what of it will disappoint."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from gateway.config.settings import Config
from gateway.errors import ConfigError
from gateway.sharing.settings import SharingSettings
from gateway.tenants.settings import TenantsSettings
from gateway.valkey.client import connect, failures, limited


async def of_sharing(config: Config) -> tuple[list[str], list[str]]:
    """The warnings, each with its remedy, and the notes. Asks the server between the replicas, if there is one."""
    settings = config.sharing
    if settings.url is None:
        return [], []
    warnings = [*_of_access(settings), *_of_files(config)]
    if (problem := await _reached(settings.url)) is not None:
        warnings.append(f"sharing.url: {problem}; until it can be reached, this gateway decides alone")
    return warnings, list(_shared(config))


def _shared(config: Config) -> Iterator[str]:
    shared = ["the engines' loads", "which engine keeps a stored response"]
    if config.tenants != TenantsSettings():
        shared.append("limits and budgets of tenants (sharing.fallback counts while the server is away)")
    if config.tenants.valkey is not None:
        shared.append("tenants and keys")
    own = ["what engines have cached (each gateway hears it from them)", "learned costs", "what plugins remember"]
    if any(model.queue is not None for model in config.models):
        shared.append("what tenants were charged in queues")
        own.append("who waits in queues")
    yield f"shared with all gateways whose sharing.name is {config.sharing.name!r}: {', '.join(shared)}"
    yield f"not shared: {', '.join(own)}, drains by the admin API, metrics and decisions"
    yield "replicas know an engine by its name (endpoints[].name, else host and port): it must be the same in all"


def _of_access(settings: SharingSettings) -> Iterator[str]:
    parts = urlsplit(settings.url or "")
    if parts.scheme == "unix" or _is_loopback(parts.hostname):
        return
    lacks = []
    if settings.password is None:
        lacks.append("a password")
    if parts.scheme not in ("rediss", "valkeys"):
        lacks.append("TLS (valkeys:// or rediss://)")
    if lacks:
        yield (
            f"sharing.url is without {' and '.join(lacks)}: who reaches the server or the network can make this "
            "gateway believe any load; add it, or keep both to your gateways"
        )


def _of_files(config: Config) -> Iterator[str]:
    if config.tenants.file is not None:
        yield (
            "tenants.file is a file of each replica's own: a key that is made or revoked at one is not at the others; "
            "use tenants.valkey, or keep the files the same"
        )


async def _is_replica(client: Any) -> bool:
    """False also where it does not say."""
    from redis.exceptions import ResponseError

    with contextlib.suppress(ResponseError):  # this user may not ask it
        return bool((await client.execute_command("ROLE"))[0] != "master")
    with contextlib.suppress(ResponseError):
        return bool((await client.info("replication"))["role"] != "master")
    await client.ping()
    return False


async def _reached(url: str) -> str | None:
    """Why the server cannot be used; None: it answers."""
    try:
        client = connect(url)
    except ConfigError as error:
        return error.message
    try:
        async with limited():
            if await _is_replica(client):
                return "the server is the replica of another one, which is to be named here"
    except failures() as error:
        return f"the server cannot be reached ({str(error) or type(error).__name__})"
    finally:
        await client.aclose()
    return None


def _is_loopback(host: str | None) -> bool:
    try:
        return ip_address(host or "127.0.0.1").is_loopback
    except ValueError:
        return (host or "").lower() == "localhost"
