from __future__ import annotations

import sys
import tomllib
from pathlib import Path

from gateway.config.registry import PACKAGES, clashes


def install(folder, name, *packages) -> None:
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "top_level.txt").write_text("\n".join(packages))


def test_there_is_none_here() -> None:
    assert clashes() == []


def test_another_distribution_with_a_package_of_ours_is_named(tmp_path, monkeypatch) -> None:
    install(tmp_path, "some-app", "filters", "app")
    install(tmp_path, "other-app", "filters", "gateway")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert clashes() == [
        "the package 'gateway' of kvgate is also installed by other-app: give kvgate an environment of its own",
        "the package 'filters' of kvgate is also installed by other-app, some-app: "
        "give kvgate an environment of its own",
    ]


def test_the_names_are_those_the_wheel_installs() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert set(project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]) == set(PACKAGES)
