"""The command line of ``kvgate envoy``."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any


def add_envoy(commands: Any) -> None:
    """Add the command to ``commands``, from argparse's ``add_subparsers``. It sets ``run`` to the function that runs
    it."""
    envoy = commands.add_parser(
        "envoy",
        help="print a configuration of Envoy, which then serves the clients and asks 'kvgate epp' where to send them",
        description="Prints an envoy.yaml that fits a configuration. Envoy then serves the clients, with that file's "
        "engines behind it, and asks 'kvgate epp' about each request. The command asks no engine and writes no file.",
    )
    envoy.add_argument("config", type=Path, metavar="CONFIG")
    envoy.add_argument(
        "--listen", metavar="HOST:PORT", help="where Envoy serves clients (listen.host and listen.port of CONFIG)"
    )
    envoy.add_argument(
        "--admin", metavar="HOST:PORT", default="127.0.0.1:9901", help="Envoy's own admin listener (127.0.0.1:9901)"
    )
    envoy.add_argument(
        "--mode",
        choices=("ends", "full", "observed", "request", "buffered"),
        default="ends",
        help="what the picker hears of an answer: 'ends': its headers and when it has ended (the default); 'full': all "
        "of it, which costs two messages for each event; 'observed': all of it, told beside the answer: no stream "
        "breaks where a picker is killed; 'request': nothing; 'buffered': nothing, and request bodies as "
        "one message",
    )
    envoy.add_argument(
        "--picker",
        metavar="HOST:PORT",
        action="append",
        help="where 'kvgate epp' listens (epp.listen of CONFIG); given several times, they take turns",
    )
    envoy.add_argument(
        "--picker-ca",
        metavar="FILE",
        help="authorities in PEM of the picker's certificate; not given: with epp.tls any certificate will do",
    )
    envoy.add_argument(
        "--fail-closed",
        action="store_true",
        help="without a picker, answer with an error; not given: requests go to the engines in turn, if all models "
        "have the same engines",
    )
    envoy.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from gateway.commands.envoy.run import run

    return run(options, os.environ)
