"""What docs/benchmarks.md says to run can be run: modules, options, columns and policies are there."""

from __future__ import annotations

import functools
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.data_path.__main__ import _chosen
from benchmarks.data_path.plan import COLUMNS
from benchmarks.data_path.rows import HERE, names
from gateway.commands.replay.policies import load_policies

PAGE = (HERE / "docs" / "benchmarks.md").read_text().replace("\\\n", " ")
MAKEFILE = (HERE / "Makefile").read_text()
COMMANDS = sorted(
    {found.strip("`") for found in re.findall(r"(?:python -m benchmarks\.|kvgate (?:replay|tune))[^`\n]*", PAGE)}
)
TARGETS = sorted(set(re.findall(r"\bmake ([a-z-]+)", PAGE)))


def options(command: str) -> dict[str, str]:
    words = shlex.split(command)
    return {word: value for word, value in zip(words, [*words[1:], ""], strict=True) if word.startswith("--")}


@functools.cache
def help_of(*program: str) -> str:
    """Of a program that is documented with several sets of options."""
    command = [sys.executable, *program, "--help"]
    return subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=True).stdout


def test_there_are_some() -> None:
    assert len(COMMANDS) >= 6
    assert {"bench", "bench-memory", "bench-placement", "test-engines"} <= set(TARGETS)


@pytest.mark.parametrize("target", TARGETS)
def test_make_has_its_target(target) -> None:
    assert re.search(rf"^{target}:", MAKEFILE, re.MULTILINE)


@pytest.mark.parametrize("command", COMMANDS)
def test_its_program_has_its_options(command) -> None:
    if command.startswith("kvgate "):
        told = help_of("-m", "gateway.cli", command.split()[1])
    else:
        told = help_of(*command.split()[1:3])
    for option in options(command):
        assert f"{option} " in told or f"{option}]" in told


@pytest.mark.parametrize("command", [command for command in COMMANDS if "--columns" in command])
def test_its_rows_and_columns_are_there(command) -> None:
    given = options(command)
    _chosen(given["--columns"].split(","), [column.name for column in COLUMNS])
    if "--rows" in given:
        _chosen(given["--rows"].split(","), names({"kvgate": HERE}))


@pytest.mark.parametrize("command", [command for command in COMMANDS if "--policies" in command])
def test_its_policies_are_there(command) -> None:
    named = [name for name in options(command)["--policies"].split(",") if Path(name).suffix != ".yaml"]
    assert [one.name for one in load_policies(",".join(named))] == named
