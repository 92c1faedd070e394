"""Covers: pyproject.toml.

What is installed where somebody says ``pip install kvgate``: six packages, their metadata, and nothing else.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
import zipfile
from configparser import RawConfigParser
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = {"gateway", "scorers", "filters", "pickers", "queues", "simulator"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    [path] = folder.glob("*.whl")
    with zipfile.ZipFile(path) as opened:
        yield opened


def test_it_holds_our_packages_and_nothing_else(wheel) -> None:
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == PACKAGES
    assert len(tops) == len(PACKAGES) + 1


def test_every_module_of_the_checkout_is_in_it_and_only_modules_are(wheel) -> None:
    inside = {name for name in wheel.namelist() if ".dist-info/" not in name}
    here = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        # ``make test-compiled`` has libraries there: the compiled wheel's.
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".so"
    }
    assert inside == here
    assert all(name.endswith((".py", "/py.typed")) for name in inside)


def test_the_license_and_the_command_are_in_it(wheel) -> None:
    names = wheel.namelist()
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    [entry_points] = [name for name in names if name.endswith(".dist-info/entry_points.txt")]
    assert "kvgate = gateway.cli:main" in wheel.read(entry_points).decode()


def test_what_the_entry_points_name_is_there(wheel) -> None:
    [path] = [name for name in wheel.namelist() if name.endswith(".dist-info/entry_points.txt")]
    parser = RawConfigParser(delimiters=("=",))
    parser.read_string(wheel.read(path).decode())
    targets = [target for section in parser.sections() for _, target in parser.items(section)]
    assert len(targets) > 10
    for target in targets:
        module, _, name = target.partition(":")
        assert hasattr(import_module(module), name), target


def test_the_version_is_the_same_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert import_module("gateway").__version__ == project["version"]


@pytest.mark.parametrize("name", ["aiohttp", "redis"])
def test_of_whose_private_parts_are_used_no_untested_minor_version_is_installed(name: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *project["optional-dependencies"]["valkey"]]
    [bounds] = [one.removeprefix(name) for one in asked if one.startswith(f"{name}>")]
    major, minor = version(name).split(".")[:2]
    assert bounds.endswith(f",<{major}.{int(minor) + 1}")
