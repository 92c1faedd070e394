"""What docs/benchmarks.md says to run can be run: modules, options, columns and policies are there."""

from __future__ import annotations

import contextlib
import functools
import io
import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest

from benchmarks.data_path.__main__ import _chosen
from benchmarks.data_path.builds import COMPILED, HERE, KVGATE
from benchmarks.data_path.plan import COLUMNS
from benchmarks.data_path.rows import names
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
def help_of(module: str, *words: str) -> str:
    """What ``python -m MODULE ... --help`` prints; a module is documented with several sets of options."""
    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out):
        patch.setattr(sys, "argv", [module, *words, "--help"])
        with pytest.raises(SystemExit) as ended:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
    assert not ended.value.code
    return out.getvalue()


def test_there_are_some() -> None:
    assert len(COMMANDS) >= 6
    assert {"bench", "bench-memory", "bench-placement", "test-engines"} <= set(TARGETS)


@pytest.mark.parametrize("target", TARGETS)
def test_make_has_its_target(target) -> None:
    assert re.search(rf"^{target}:", MAKEFILE, re.MULTILINE)


@pytest.mark.filterwarnings("ignore:.* found in sys.modules:RuntimeWarning")  # we import one of them as well
@pytest.mark.parametrize("command", COMMANDS)
def test_its_program_has_its_options(command) -> None:
    words = command.split()
    told = help_of("gateway.cli", words[1]) if words[0] == "kvgate" else help_of(words[2])
    for option in options(command):
        assert f"{option} " in told or f"{option}]" in told


@pytest.mark.parametrize("command", [command for command in COMMANDS if "--columns" in command])
def test_its_rows_and_columns_are_there(command) -> None:
    given = options(command)
    _chosen(given["--columns"].split(","), [column.name for column in COLUMNS])
    if "--rows" in given:
        _chosen(given["--rows"].split(","), names([KVGATE, COMPILED]))


@pytest.mark.parametrize("command", [command for command in COMMANDS if "--policies" in command])
def test_its_policies_are_there(command) -> None:
    named = [name for name in options(command)["--policies"].split(",") if Path(name).suffix != ".yaml"]
    assert [one.name for one in load_policies(",".join(named))] == named
