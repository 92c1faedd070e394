"""The command line of ``kvgate keys``."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any


def add_keys(commands: Any) -> None:
    """Add the command to ``commands``, from argparse's ``add_subparsers``."""
    keys = commands.add_parser(
        "keys",
        help="make, list, revoke and rotate the API keys of tenants",
        description="Makes, lists, revokes and rotates the API keys of tenants, where CONFIG keeps them: in "
        "tenants.file or in Valkey. With --url instead of CONFIG, a running gateway does it.",
    )
    verbs = keys.add_subparsers(title="verbs", required=True, metavar="VERB")

    add = verbs.add_parser("add", help="make a key; it is printed, this once, and only its SHA-256 is kept")
    _add_where(add)
    add.add_argument("--tenant", required=True, help="whose it is")
    add.add_argument("--id", help="the key's name, in logs and for revoke; not given: the tenant's and a random end")
    add.add_argument("--expires", metavar="WHEN", help="a date or time, such as 2027-01-31, or a span, such as 30d")
    add.add_argument("--models", metavar="NAME,...", help="only these of its tenant's models; 'qwen*': that begin so")
    add.add_argument("--create-tenant", action="store_true", help="make the tenant, if there is none of that name")
    add.set_defaults(run=_run, verb="add")

    listing = verbs.add_parser("list", help="show all keys, but for what would let anybody in")
    _add_where(listing)
    listing.add_argument("--tenant", help="only those of one tenant")
    listing.set_defaults(run=_run, verb="list")

    revoke = verbs.add_parser("revoke", help="let nobody in with a key any more; its requests that run end in peace")
    _add_where(revoke)
    revoke.add_argument("id", metavar="ID")
    revoke.set_defaults(run=_run, verb="revoke")

    rotate = verbs.add_parser("rotate", help="make a second key of the same id; the old one stays valid for a while")
    _add_where(rotate)
    rotate.add_argument("id", metavar="ID")
    rotate.add_argument("--keep", metavar="SPAN", help="how long the old one stays valid, such as 12h or 0 (1d)")
    rotate.set_defaults(run=_run, verb="rotate")


def _add_where(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", type=Path, nargs="?", metavar="CONFIG", help="the configuration of the gateway")
    parser.add_argument("--url", help="the admin listener of a running gateway, such as http://127.0.0.1:9000")
    parser.add_argument("--token", help="with --url: tenants.admin_token; not given: the variable KVGATE_ADMIN_TOKEN")
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")


def _run(options: argparse.Namespace) -> int:
    from gateway.commands.keys.run import run

    return run(options, os.environ)
