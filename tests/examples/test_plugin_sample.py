"""docs/examples/kvgate-plugin-sample: installed as by a user, found by its entry point, used from YAML."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "kvgate-plugin-sample"
CONFIG = """\
models: [{name: m, endpoints: [{url: "http://a:1", labels: {tariff: night}}, {url: "http://b:1"}]}]
plugins:
- {name: night, type: time-of-day, parameters: {label: {tariff: night}, begin: 23, end: 5%s}}
- {name: best, type: max-score}
profiles:
- {name: default, scorers: [{plugin: night}], picker: best}
"""
USE = """\
import random, sys
from gateway.config.load import load
from gateway.config.build import build_scheduler
from gateway.errors import ConfigError
from gateway.core.observer import NULL_OBSERVER
from gateway.core.clock import ManualClock
from gateway.framework import Context
from gateway.scheduling.trace import Trace
from tests.support.candidates import endpoint, request

clock = ManualClock()
try:
    scheduler = build_scheduler(load(sys.argv[1], {}), lambda name: Context(name, clock, random.Random(0)))
except ConfigError as error:
    sys.exit(error.message)
for hour in (22, 23, 0, 4, 5):
    clock.now, trace = hour * 3600.0, Trace({})
    fleet = (endpoint(0, labels={"tariff": "night"}), endpoint(1))
    scheduler.schedule(request(), fleet, trace)
    print(hour, [score for score, _ in trace.runs[0].scores().values()])
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """A folder with the package, built and installed by pip without reaching for an index."""
    folder = tmp_path_factory.mktemp("site")
    source = shutil.copytree(SAMPLE, tmp_path_factory.mktemp("source") / "sample")
    command = ["-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--no-cache-dir"]
    subprocess.run(
        [sys.executable, *command, "--disable-pip-version-check", "--target", str(folder), str(source)],
        check=True,
        timeout=110,
    )
    return folder


def use(folder: Path, config: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(folder), str(SAMPLE.parents[2])])
    return subprocess.run(
        [sys.executable, "-c", USE, str(config)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_it_is_found_and_decides(installed, tmp_path) -> None:
    (tmp_path / "p.yaml").write_text(CONFIG % "")
    done = use(installed, tmp_path / "p.yaml")
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "22 [1.0, 1.0]",
        "23 [1.0, 0.0]",
        "0 [1.0, 0.0]",
        "4 [1.0, 0.0]",
        "5 [1.0, 1.0]",
    ]


def test_its_parameters_are_checked_like_any_others(installed, tmp_path) -> None:
    (tmp_path / "p.yaml").write_text(CONFIG % ", start: 3")
    done = use(installed, tmp_path / "p.yaml")
    assert done.returncode == 1
    assert "p.yaml:3: plugins[0].parameters.start: unknown key" in done.stderr
    (tmp_path / "p.yaml").write_text(CONFIG.replace("23", "24") % "")
    assert (
        "p.yaml:3: plugins[0].parameters: begin must be an hour in 0..23" in use(installed, tmp_path / "p.yaml").stderr
    )


def test_it_imports_the_framework_only() -> None:
    tree = ast.parse((SAMPLE / "kvgate_plugin_sample.py").read_text())
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name for name in modules if name and name.startswith("gateway")} == {"gateway.framework"}
