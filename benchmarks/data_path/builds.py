"""The gateways that are measured: of checkouts, and installed ones; in pure Python, or with compiled modules."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from gateway.commands.processes import START_SECONDS, offline

HERE = Path(__file__).parents[2]

KVGATE, COMPILED = "kvgate", "compiled"
"""Names of rows: this checkout's gateway, and the compiled one beside it. These two are on the page, and are judged."""

PURE = "pure Python"
"""What a build is that is not ``COMPILED``; ``kvgate --version`` says which."""


@dataclass(frozen=True)
class Build:
    """``python`` runs it: from the checkout ``home``, or, without one, what is installed for it."""

    python: Path
    home: Path | None = None

    def command(self, *arguments: str) -> list[str]:
        # -P: the folder in which it is started must not be searched, since it may be a checkout.
        return [str(self.python), *(() if self.home else ("-P",)), "-m", "gateway.cli", *arguments]

    @cached_property
    def version(self) -> str:
        """What it says of itself. Raises OSError or subprocess.SubprocessError where it does not start."""
        said = subprocess.run(
            self.command("--version"),
            cwd=self.home,
            env=offline(os.environ),
            capture_output=True,
            text=True,
            check=True,
            timeout=START_SECONDS,
        )
        return said.stdout.strip()

    @property
    def kind(self) -> str:
        return kind_of(self.version)


THIS = Build(Path(sys.executable), HERE)


def kind_of(version: str) -> str:
    """``COMPILED`` or ``PURE``. Older gateways do not say it: they are pure Python."""
    return COMPILED if COMPILED in version and PURE not in version else PURE


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tree",
        action="append",
        default=[],
        metavar="NAME=PATH",
        help="another checkout's gateway as a row of its own; kvgate=PATH in the place of this one's",
    )
    parser.add_argument(
        "--python",
        action="append",
        default=[],
        metavar="NAME=PATH",
        help="the gateway that is installed for the Python at PATH, likewise; compiled=PATH: the page's compiled row",
    )


def chosen(options: argparse.Namespace) -> Mapping[str, Build]:
    """This checkout's, then those that the options name. Ends the program where one does not start, or where the one
    with the name ``COMPILED`` is not."""
    builds = {KVGATE: THIS}
    for name, _, path in (each.partition("=") for each in options.tree):
        builds[name] = Build(Path(sys.executable), Path(path).resolve())
    for name, _, path in (each.partition("=") for each in options.python):
        builds[name] = Build(Path(path).absolute())  # a link stays: it is what makes the environment
    for name, build in builds.items():
        try:
            kind = build.kind
        except (OSError, subprocess.SubprocessError) as error:
            raise SystemExit(f"{name}: does not start: {error}") from error
        if name == COMPILED and kind != COMPILED:
            raise SystemExit(f"{name}: says that it is {build.version!r}")
    return builds
