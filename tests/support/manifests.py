"""deploy/kubernetes: its manifests as objects, and the programs of tests/deploy/install.sh that make and check some."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

FOLDER = Path(__file__).parents[2] / "deploy/kubernetes"
CHART = FOLDER / "chart"
MODES = ("proxy", "picker")

Object = dict[str, Any]


def tools() -> Path:
    """The folder of helm, kubectl and kubernetes-validate."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvgate/helm-4.3.1/bin"


# A user's machine may do without; CI has to have it.
needs_helm = pytest.mark.skipif(
    not (tools() / "helm").exists() and not os.environ.get("CI"),
    reason="helm is not installed: tests/deploy/install.sh does it",
)


def run(*command: str | Path, **environ: str) -> str:
    """What a program prints: one of ``tools``, or by its path."""
    first, *rest = command
    program = tools() / first if isinstance(first, str) else first
    done = subprocess.run([program, *rest], env=os.environ | environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def rendered(*options: str | Path) -> list[Object]:
    """What the chart makes of a release ``kvgate`` in the namespace ``team``."""
    return objects(run("helm", "template", "kvgate", CHART, "--namespace", "team", *options))


def values_of(mode: str) -> tuple[str | Path, ...]:
    return ("--values", CHART / "values-picker.yaml") if mode == "picker" else ()


def objects(text: str) -> list[Object]:
    return [one for one in yaml.safe_load_all(text) if one is not None]


def the(kind: str, among: list[Object]) -> Object:
    """The only one of this kind."""
    [found] = [one for one in among if one["kind"] == kind]
    return found
