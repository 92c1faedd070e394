"""Covers: gateway/commands/replay/scaling/command.py, gateway/commands/replay/options.py.

``kvgate replay --scale`` as its users run it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.cli import EXIT_CONFIG, main
from gateway.commands.replay.scaling.command import HEADINGS

EXCERPT = str(Path(__file__).parents[3] / "data" / "replay" / "mooncake_conversation.jsonl")
GIVEN = ["replay", EXCERPT, "--first", "30", "--seeds", "2", "--jobs", "1", "--endpoints", "4", "--speed", "0.3"]


def test_it_compares_and_writes_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.md"
    how = ["--scale", "wanted,running:8,fixed:2", "--join", "20s", "--wave", "3:60", "--start", "2"]
    assert main([*GIVEN, *how, "--slo", "ttft=2s,tpot=50ms", "--page", str(page)]) == 0
    shown = capsys.readouterr().out
    lines = page.read_text().splitlines()
    assert "peak 3 x trough every 60 s, engines join after 20 s: 30 requests, 2 seeds:" in lines[0]
    assert lines[2] == f"| {' | '.join(HEADINGS)} |"
    assert [line.split(" | ")[0].removeprefix("| ") for line in lines[4:]] == ["wanted", "running:8", "fixed:2"]
    fixed = lines[-1].split(" | ")
    assert fixed[3] == "2"
    assert all(name in shown for name in ("wanted", "running:8", "fixed:2"))


def test_what_the_mean_load_needs_is_there_at_the_beginning() -> None:
    assert main([*GIVEN, "--first", "20", "--seeds", "1", "--scale", "usual"]) == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--scale", "runing"], "there is no 'runing'"),
        (["--scale", ","], "name at least one trigger"),
        (["--scale", "wanted", "--join", "soon"], "'soon' must be a time"),
        (["--scale", "wanted", "--start", "9"], "4 engines are too few"),
        (["--scale", "fixed:9"], "4 engines are too few"),
        (["--scale", "wanted", "--wave", "4"], "must be RATIO:PERIOD"),
        (["--scale", "wanted", "--json", "x.json"], "--json cannot be given with --scale"),
        (["--scale", "wanted", "--deciders", "2"], "with one gateway"),
        (["--join", "20s"], "--join is of --scale"),
        (["--scale", "wanted", "--endpoints", "2 x 70b-tp4:prefill + 2 x 70b-tp4:decode"], "without roles"),
    ],
)
def test_wrong_options_are_refused(options: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*GIVEN, *options]) == EXIT_CONFIG
    assert said in capsys.readouterr().err


def test_a_generator_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "groups", "--scale", "wanted"]) == EXIT_CONFIG
    assert "needs a trace" in capsys.readouterr().err
