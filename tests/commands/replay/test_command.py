"""Covers: gateway/commands/replay/command.py, gateway/commands/replay/options.py, gateway/commands/replay/sources.py.

``kvgate replay`` as its users run it.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.placement import load
from gateway.cli import EXIT_CONFIG, main
from gateway.commands.replay import command
from gateway.commands.replay.command import cell, cells, noise
from gateway.commands.replay.fleet import Kind, kinds
from gateway.commands.replay.groups import Shape
from gateway.commands.replay.report import check_writable
from gateway.commands.replay.scene import Cell
from gateway.commands.replay.sources import GeneratedSource, TraceSource
from gateway.errors import ConfigError
from simulator.virtual.machine import MACHINES
from simulator.virtual.noise import Noise

EXCERPT = Path(__file__).parents[2] / "data" / "replay" / "mooncake_conversation.jsonl"


def test_options_become_a_cell() -> None:
    options = {"workload": "t.jsonl", "first": None, "speed": 0.45, "scrape": 1.0, "groups": None, "machine": "8b-h100"}
    assert cell(options) == Cell(TraceSource(Path("t.jsonl")), fleet=kinds("8 x 8b-h100"), speed=0.45)
    mixed = cell({"workload": "t.jsonl", "endpoints": "2 x 70b-tp4 + 8b-h100", "believed": "70b-tp4"})
    assert mixed.fleet == (Kind(MACHINES["70b-tp4"], 2), Kind(MACHINES["8b-h100"]))
    assert mixed.believed == MACHINES["70b-tp4"]
    assert cell({"workload": "groups", "turns": 3, "scrape": 0.0}) == Cell(GeneratedSource(Shape(turns=3)), scrape=None)


def test_several_of_an_option_are_cells_of_each() -> None:
    options = {"workload": "t.jsonl, groups", "first": 5, "turns": 3, "speed": "0.3,0.6", "machine": "8b-h100, 70b-tp4"}
    found = cells(options)
    assert len(found) == 8
    assert found[0] == Cell(TraceSource(Path("t.jsonl"), 5), fleet=kinds("8 x 8b-h100"), speed=0.3)
    assert found[-1] == Cell(GeneratedSource(Shape(turns=3)), fleet=kinds("8 x 70b-tp4"), speed=0.6)
    fleets = cells({"workload": "t.jsonl", "endpoints": "2 x 70b-tp4 + 8b-h100, 4, 4"})
    assert [one.endpoints for one in fleets] == [3, 4]
    with pytest.raises(ConfigError, match="--gap is of the workload 'agents'"):
        cells({"workload": "t.jsonl,groups", "gap": 5.0})
    with pytest.raises(ConfigError, match="name at least one trace"):
        cells({"workload": " ,"})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"workload": "groups", "first": 5}, "--first is of a trace"),
        ({"workload": "agents", "first": 5}, "--first is of a trace"),
        ({"workload": "t.jsonl", "turns": 5}, "--turns is of the workload 'groups'"),
        ({"workload": "agents", "think": 5.0}, "--think is of the workload 'groups'"),
        ({"workload": "groups", "gap": 5.0}, "--gap is of the workload 'agents'"),
        ({"workload": "t.jsonl", "first": 0}, "first must be at least 1"),
        ({"workload": "t.jsonl", "endpoints": "0"}, "endpoints must be in 1..10000, found 0 x 70b-tp4"),
        ({"workload": "t.jsonl", "endpoints": "2 x 70b-tp4", "machine": "8b-h100"}, "leave out --machine"),
    ],
)
def test_options_that_do_not_fit(options, said) -> None:
    with pytest.raises(ConfigError, match=said):
        cell(options)


def test_noise_is_one_spread_or_single_values() -> None:
    assert noise("0.3") == Noise(step=0.3, prefill=0.3)
    assert noise("prefill=0.2, stalls=0.01,stall=20") == Noise(prefill=0.2, stalls=0.01, stall=20)
    assert cell({"workload": "groups", "noise": "0.3"}).noise == noise("0.3")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("much", "--noise: 'much' is no number"),
        ("-1", "--noise: step must be in 0..3"),
        ("nan", "--noise: step must be in 0..3"),
        ("step=0.1,step=0.2", "--noise: step is given twice"),
        ("steps=0.1", "--noise: there is no 'steps'; did you mean 'step'"),
        ("step=0.1,0.3", "--noise: '0.3' must be NAME=VALUE"),
        ("stalls=0.9", "--noise: stalls must be in 0..0.5"),
    ],
)
def test_noise_that_makes_no_sense(text, said) -> None:
    with pytest.raises(ConfigError, match=said):
        noise(text)


def test_classes_have_tables_of_their_own_and_objectives_are_asked_for(tmp_path, capsys) -> None:
    trace = tmp_path / "mixed.jsonl"
    lines = [json.loads(text) for text in EXCERPT.read_text().splitlines()[:40]]
    trace.write_text(
        "".join(json.dumps({**one, "class": ("chat", "batch")[n % 2]}) + "\n" for n, one in enumerate(lines))
    )
    numbers = tmp_path / "it.json"
    code = main(
        ["replay", str(trace), "--endpoints", "2", "--speed", "0.5", "--seeds", "1", "--jobs", "1", "--policies",
         "default,llm-d", "--slo", "ttft=1s,tpot=40ms", "--slo", "batch:ttft=30s", "--json", str(numbers)]
    )  # fmt: skip
    assert code == 0
    out = capsys.readouterr().out
    name = "mixed, 0.50 requests/s/endpoint, 2 x 70b-tp4, ttft=1s,tpot=40ms batch:ttft=30s"
    assert f"{name}: 40 requests, 1 seed" in out
    assert f"{name}, class batch: 20 requests, 1 seed" in out
    assert f"{name}, class chat: 20 requests, 1 seed" in out
    [found] = load(numbers)
    [summary] = found.summaries["default"]
    assert set(summary.classes) == {"batch", "chat"}
    assert summary.classes["batch"]["goodput"] == 1.0


def test_a_comparison_from_end_to_end(tmp_path, capsys) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text(
        "plugins: [{name: cost, type: placement-cost, parameters: {lam: 1}}, {name: best, type: max-score}]\n"
        "profiles: [{name: default, scorers: [{plugin: cost}], picker: best}]\n"
    )
    numbers, plot = tmp_path / "out" / "it.json", tmp_path / "out" / "it.png"
    code = main(
        ["replay", str(EXCERPT), "--first", "60", "--endpoints", "2", "--speed", "0.5", "--seeds", "2", "--jobs", "1",
         "--policies", f"default,round-robin,{mine}", "--json", str(numbers), "--plot", str(plot)]
    )  # fmt: skip
    out, err = capsys.readouterr()
    assert code == 0
    assert "mooncake_conversation, 0.50 requests/s/endpoint, 2 x 70b-tp4: 60 requests, mean of 2 seeds" in out
    assert "│ round-robin │" in out
    assert "6 of 6 runs" in err
    [found] = load(numbers)
    assert {name: len(summaries) for name, summaries in found.summaries.items()} == {
        "default": 2, "round-robin": 2, "mine": 2,
    }  # fmt: skip
    assert found.settings["source"]["path"] == EXCERPT.name  # no one's folders
    assert json.loads(numbers.read_text())["cells"][0]["settings"]["speed"] == 0.5
    assert plot.stat().st_size > 10_000


def test_groups_from_end_to_end(capsys) -> None:
    code = main(
        ["replay", "groups", "--groups", "3", "--users", "2", "--rounds", "2", "--turns", "2", "--output", "50",
         "--think", "1", "--endpoints", "2", "--seeds", "1", "--jobs", "1", "--policies", "default", "--scrape", "0"]
    )  # fmt: skip
    assert code == 0
    assert "groups, 2 x 70b-tp4: 24 requests, 1 seed" in capsys.readouterr().out


def test_agents_from_end_to_end(capsys) -> None:
    code = main(
        ["replay", "agents", "--sessions", "4", "--live", "2", "--shared", "500", "--begin", "2000", "--longest",
         "5000", "--endpoints", "2", "--seeds", "1", "--jobs", "1", "--policies", "default"]
    )  # fmt: skip
    assert code == 0
    assert "agents, 2 x 70b-tp4: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere.jsonl"], "nowhere.jsonl: cannot be read"),
        ([str(EXCERPT), "--policies", "defualt"], "did you mean 'default'"),
        ([str(EXCERPT), "--machine", "70b"], "there is no machine '70b'"),
        ([str(EXCERPT), "--seeds", "0"], "seeds must be at least 1"),
        ([str(EXCERPT), "--jobs", "0"], "jobs must be at least 1"),
        (["groups", "--think", "inf"], "think must be in 0..1e+06 seconds"),
    ],
)
def test_mistakes_are_named(capsys, arguments, said) -> None:
    assert main(["replay", *arguments]) == EXIT_CONFIG
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--json", "--plot"])
def test_what_cannot_be_written_is_said_before_anything_is_run(capsys, tmp_path, monkeypatch, option) -> None:
    monkeypatch.setattr(command, "run", None)
    (tmp_path / "file").touch()
    assert main(["replay", str(EXCERPT), option, str(tmp_path / "file" / "it")]) == EXIT_CONFIG
    assert "cannot be written" in capsys.readouterr().err


def test_the_check_leaves_nothing_behind(tmp_path) -> None:
    there, new = tmp_path / "there", tmp_path / "new"
    there.write_text("kept")
    check_writable(there)
    check_writable(new)
    assert there.read_text() == "kept"
    assert not new.exists()


def test_roles_a_link_and_a_schedule(capsys, tmp_path) -> None:
    numbers = tmp_path / "it.json"
    arguments = [
        "replay", str(EXCERPT), "--first", "40", "--speed", "0.5", "--seeds", "1", "--jobs", "1",
        "--endpoints", "2 x 70b-tp4:prefill + 2 x 70b-tp4:decode", "--link", "rate=1e10,latency=0.01",
        "--change", "5:fail:0", "--change", "9:join:0", "--policies", "prefill-decode-512", "--json", str(numbers),
    ]  # fmt: skip
    assert main(arguments) == 0
    said = capsys.readouterr().out
    for word in ("lost", "retried", "prefilled"):
        assert word in said
    found = {"settings": load(numbers)[0].settings}
    assert found["settings"]["link"] == {"rate": 1e10, "latency": 0.01}
    assert found["settings"]["schedule"][1] == {"at": 9.0, "endpoint": 0, "what": "join"}
    assert [kind["role"] for kind in found["settings"]["fleet"]] == ["prefill", "decode"]
    for wrong, why in (("5:fail:4", "the endpoints are 0..3"), ("now", "must be AT:WHAT:ENDPOINT")):
        assert main([*arguments, "--change", wrong]) == 2
        assert why in capsys.readouterr().err
