"""Which gateways are measured, and of which kind they say they are."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pytest

from benchmarks.data_path.builds import COMPILED, HERE, KVGATE, PURE, THIS, Build, add_options, chosen, kind_of


def options(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_options(parser)
    return parser.parse_args(words)


def fake(folder: Path, version: str) -> Path:
    """What is started as a Python, and says that its gateway is this ``version``."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\necho '{version}'\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("version", "kind"),
    [("kvgate 0.1.0", PURE), ("kvgate 0.1.0 (pure Python)", PURE), ("kvgate 0.1.0 (compiled)", COMPILED)],
)
def test_a_version_says_its_kind(version: str, kind: str) -> None:
    assert kind_of(version) == kind


def test_without_options_it_is_this_checkout() -> None:
    assert chosen(options()) == {KVGATE: THIS}
    assert THIS.version.startswith("kvgate ")


def test_what_is_installed_is_not_looked_for_in_the_current_folder() -> None:
    """A folder that is started in may be a checkout, whose gateway would be another."""
    assert Build(Path("python")).command("serve") == ["python", "-P", "-m", "gateway.cli", "serve"]
    assert Build(Path("python"), HERE).command("serve") == ["python", "-m", "gateway.cli", "serve"]


def test_trees_and_pythons_are_rows_by_their_names(tmp_path: Path) -> None:
    python = fake(tmp_path, "kvgate 0.1.0 (compiled)")
    builds = chosen(options("--tree", f"old={HERE}", "--python", f"compiled={python}"))
    assert list(builds) == [KVGATE, "old", COMPILED]
    assert builds["old"] == Build(Path(sys.executable), HERE)
    assert builds[COMPILED].kind == COMPILED
    assert chosen(options("--tree", f"kvgate={tmp_path / '..'}", "--python", f"kvgate={python}")) == {
        KVGATE: Build(python)
    }


def test_compiled_must_be_compiled(tmp_path: Path) -> None:
    python = fake(tmp_path, "kvgate 0.1.0 (pure Python)")
    with pytest.raises(SystemExit, match="compiled: says that it is"):
        chosen(options("--python", f"compiled={python}"))


def test_a_build_that_does_not_start_ends_it(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="other: does not start"):
        chosen(options("--python", f"other={tmp_path / 'missing'}"))
