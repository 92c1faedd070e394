"""Runs ``kvgate keys``: on what a configuration names, or through a running gateway."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from typing import Any

import uvloop

from gateway.commands.keys.remote import Remote
from gateway.config.decode import decode
from gateway.config.load import load
from gateway.config.origin import Origin
from gateway.core.clock import SystemClock
from gateway.errors import ConfigError, GatewayError
from gateway.tenancy import store_of
from gateway.tenants.management import Management, NewKey

TOKEN = "KVGATE_ADMIN_TOKEN"
"""The environment variable with the admin API's token: a command line can be read by other users."""

COLUMNS = ("id", "tenant", "expires", "models", "sha256", "source")


def run(options: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """The exit code: 0, or 1 with the reason on stderr. Raises ConfigError."""
    there = _there(options, environ)
    try:
        answer = uvloop.run(_ask(options, there))
    except ConfigError:
        raise
    except GatewayError as error:
        print(f"kvgate: {error.message}", file=sys.stderr)
        return 1
    _print(options, answer)
    return 0


def _there(options: argparse.Namespace, environ: Mapping[str, str]) -> Management | Remote:
    if (options.config is None) == (options.url is None):
        raise ConfigError("give a CONFIG, or the --url of a running gateway's admin listener")
    if options.url is not None:
        token = options.token or environ.get(TOKEN)
        if not token:
            raise ConfigError(f"--url needs the gateway's tenants.admin_token: give --token, or set {TOKEN}")
        return Remote(options.url, token)
    config = load(options.config, environ)
    store = store_of(config)
    if store is None and options.verb != "list":
        problem = "keys have no place: set file, such as 'tenants: {file: tenants.yaml}', or valkey"
        raise config.origin.error(("tenants",), problem)
    return Management(store, config.tenants, SystemClock())


async def _ask(options: argparse.Namespace, there: Management | Remote) -> Any:
    match options.verb:
        case "add":
            wanted: dict[str, Any] = {"tenant": options.tenant, "create_tenant": options.create_tenant}
            wanted |= {name: value for name in ("id", "expires") if (value := getattr(options, name)) is not None}
            if options.models is not None:
                wanted["models"] = [name.strip() for name in options.models.split(",")]
            if isinstance(there, Remote):
                return await there.add(wanted)
            return await there.add(decode(NewKey, wanted, (), Origin()))
        case "list":
            keys = await there.keys()
            return [key for key in keys if options.tenant in (None, key["tenant"])]
        case "revoke":
            return await there.revoke(options.id)
        case _:
            return await there.rotate(options.id, options.keep)


def _print(options: argparse.Namespace, answer: Any) -> None:
    """A key alone goes to stdout, so that a script can take it; what people want to know beside it, to stderr."""
    if options.json:
        print(json.dumps(answer, indent=1))
    elif options.verb == "list":
        rows = [COLUMNS, *(_row(key) for key in answer)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(COLUMNS))]
        for row in rows:
            print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    elif "key" in answer:
        until = f", until {answer['expires']}" if "expires" in answer else ""
        print(answer["key"])
        print(f"kvgate: the key {answer['id']} of {answer['tenant']}{until}; it is not shown again", file=sys.stderr)
    else:
        print(f"kvgate: the key {answer['id']} is revoked", file=sys.stderr)


def _row(key: dict[str, Any]) -> tuple[str, ...]:
    ends = key.get("expires", "never")
    shown = {**key, "expires": f"{ends} (expired)" if key["expired"] else ends}
    shown["models"] = ",".join(key["models"]) if "models" in key else "all of its tenant"
    return tuple(str(shown[name]) for name in COLUMNS)
