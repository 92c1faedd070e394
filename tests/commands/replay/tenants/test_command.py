"""Covers: gateway/commands/replay/tenants/command.py, gateway/commands/replay/tenants/options.py,
gateway/commands/replay/tenants/ways.py.

``kvgate replay --tenants`` as its users run it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.cli import EXIT_CONFIG, main
from gateway.commands.replay.fleet import kinds
from gateway.commands.replay.tenants.options import JUDGED, asked
from gateway.commands.replay.tenants.ways import OURS, WAYS, ways
from gateway.errors import ConfigError

QUICK = ["--tenants", "greedy-long", "--loads", "1.2", "--seconds", "2", "--seeds", "1", "--jobs", "1"]
GIVEN = [*QUICK, "--capacity", "greedy-long=8", "--endpoints", "2"]


def test_options_have_their_defaults() -> None:
    found = asked({"tenants": "greedy-long,thrashing", "seeds": 2})
    assert [scene.name for scene in found.scenes] == ["greedy-long", "thrashing"]
    assert list(found.ways) == list(WAYS.values())
    assert found.scene.fleet == kinds("8 x 8b-h100")
    assert found.scene.objectives == JUDGED
    assert (list(found.loads), found.seconds, found.policy.name) == ([0.8, 1.0, 1.2, 1.5], 200.0, "default")
    other = asked({"tenants": "all", "machine": "70b-tp4", "endpoints": "4", "slo": ["ttft=1s"], "seeds": 1})
    assert other.scene.fleet == kinds("4 x 70b-tp4")
    assert str(other.scene.objectives) == "ttft=1s"
    assert asked({"tenants": "all", "endpoints": "2 x 70b-tp4"}).scene.fleet == kinds("2 x 70b-tp4")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"workload": "t.jsonl"}, "--tenants has requests of its own: leave out a trace"),
        ({"speed": 1.0}, "leave out --speed"),
        ({"policies": "default,llm-d"}, "behind one policy"),
        ({"slo": ["batch:ttft=2s"]}, "counts the same objectives for all"),
        ({"loads": ","}, "--loads: name at least one"),
        ({"loads": "0"}, "--loads: must be in 0.01..100, found 0"),
        ({"loads": "much"}, "--loads: 'much' is no number"),
        ({"capacity": "greedy-many=3"}, "--capacity: there is no 'greedy-many'"),
        ({"capacity": "greedy-long=0"}, "greedy-long must be above 0"),
        ({"ways": "at-onec"}, "--ways: there is no 'at-onec'; did you mean"),
        ({"ways": " "}, "--ways: name at least one"),
        ({"seconds": 0.0}, "seconds must be in 1..86400"),
        ({"seeds": 0}, "seeds must be at least 1"),
    ],
)
def test_what_makes_no_sense_is_said(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        asked({"tenants": "greedy-long", **options})


def test_ways_are_found_by_name() -> None:
    assert [way.name for way in ways("at-once, llm-d-round-robin")] == ["at-once", "llm-d-round-robin"]
    assert ways("all") == list(WAYS.values())
    assert list(WAYS)[3:] == ["fair-cost", "fair-tokens", "fair-requests", "earliest-deadline", "first-come"]
    assert set(list(WAYS)[3:]) == OURS


def test_a_run_prints_its_tables_and_writes_its_files(tmp_path: Path, capsys) -> None:
    numbers, plot, page = tmp_path / "it.json", tmp_path / "it.png", tmp_path / "it.md"
    files = ["--json", str(numbers), "--plot", str(plot), "--page", str(page)]
    assert main(["replay", *GIVEN, "--ways", "at-once,llm-d-round-robin", *files]) == 0
    said = capsys.readouterr()
    assert "greedy-long, 1.2 times what the fleet can serve: 9.6 requests/s, 1 seed" in said.out
    assert "│ greedy " in said.out
    assert "2 of 2 runs" in said.err
    assert json.loads(numbers.read_text())["settings"]["capacities"] == {"greedy-long": 8.0}
    assert plot.stat().st_size > 0
    assert page.read_text().startswith("**greedy-long, 1.2 times")


@pytest.mark.slow
def test_the_capacity_is_found_if_none_is_given(monkeypatch, capsys) -> None:
    monkeypatch.setattr("gateway.commands.replay.tenants.job.TRIAL_SECONDS", 2.0)
    assert main(["replay", *QUICK, "--endpoints", "1", "--ways", "at-once"]) == 0
    assert "the fleet can serve" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["replay"], "name a trace, 'groups' or 'agents', or scenes with --tenants"),
        (["replay", "groups", "--ways", "at-once"], "--ways is of --tenants"),
        (["replay", *GIVEN, "--jobs", "0"], "jobs must be at least 1"),
        (["replay", *GIVEN, "--page", "/dev/null/it.md"], "cannot be written"),
        (["replay", "--tenants", "nobody"], "there is no scene 'nobody'"),
    ],
)
def test_mistakes_on_the_command_line(words: list[str], said: str, capsys) -> None:
    assert main(words) == EXIT_CONFIG
    assert said in capsys.readouterr().err
