"""Covers: gateway/commands/replay/plan.py, gateway/commands/replay/plan_report.py.

``kvgate plan`` as its users run it.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from rich.console import Console

from gateway.cli import EXIT_CONFIG, main
from gateway.commands.replay.fleet import Kind
from gateway.commands.replay.floor import Floor
from gateway.commands.replay.objectives import objectives
from gateway.commands.replay.plan_report import table
from gateway.commands.replay.sizes import Trial
from gateway.framework import Role
from simulator.virtual.machine import MACHINES
from tests.commands.replay.runs import summary

EXCERPT = Path(__file__).parents[2] / "data" / "replay" / "mooncake_conversation.jsonl"


def lengths(folder: Path, count: int = 150, prompt: int = 600, output: int = 20, **other: object) -> Path:
    path = folder / "lengths.jsonl"
    lines = [
        {"timestamp": 100 * n, "input_length": prompt + n % 7, "output_length": output, **other} for n in range(count)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_size_is_found(tmp_path, capsys) -> None:
    plot = tmp_path / "out" / "plan.png"
    code = main(
        ["plan", str(lengths(tmp_path)), "--slo", "ttft=500ms,tpot=40ms", "--rate", "30", "--seeds", "2", "--jobs", "1",
         "--plot", str(plot)]
    )  # fmt: skip
    assert plot.stat().st_size > 10_000
    out = capsys.readouterr().out
    assert code == 0
    [line] = [line for line in out.splitlines() if " of 70b-tp4 answer " in line]
    assert "within ttft=0.5s,tpot=40ms (mean of " in line
    engines = int(line.split()[0])
    assert engines > 1
    assert f"\n{engines:>7} " in out
    assert "One less answers " in out
    assert max(map(len, out.splitlines())) <= 80
    assert "caches that fill" in out  # 150 requests are few


def test_the_table_has_80_columns_whatever_its_figures(capsys) -> None:
    figures = {"ttft_p50": 123.456, "ttft_p99": 1234.5, "tpot_p99": 1.234, "hit_rate": 1.0}
    fleet = (Kind(MACHINES["70b-tp4"], 64, Role.PREFILL), Kind(MACHINES["70b-tp4"], 128, Role.DECODE))
    trials = [Trial(fleet, shares, 0.99, [summary(**figures)] * 9) for shares in ([1.0] * 9, [0.98, 1.0, 0.99])]
    floor = Floor("", objectives(["ttft=2s,tpot=50ms", "batch:ttft=60s"]), [])
    Console(width=80).print(table(trials, [floor], "prompts computed apart"))
    out = capsys.readouterr().out
    assert "64p + 128d" in out
    assert "100.0..100.0" in out
    assert "open" in out
    assert "…" not in out
    assert max(map(len, out.splitlines())) <= 80


def test_what_cannot_be_had_at_any_size_is_said_before_anything_runs(tmp_path, capsys) -> None:
    path = lengths(tmp_path, count=20, prompt=85_000)
    assert main(["plan", str(path), "--slo", "ttft=2s,tpot=50ms"]) == 1
    out, err = capsys.readouterr()
    text = " ".join(out.split())
    assert "99 % of the requests within a TTFT of 2 s cannot be had at any size" in text
    assert "prompts of 85,006 tokens take 12.7 s alone, of which 85,006 are new" in text
    assert "At most 0.0 % of the requests can: ask for a longer time, or a faster machine" in text
    assert "runs" not in err
    assert main(["plan", str(path), "--slo", "tpot=20ms"]) == 1
    assert "a step of 70b-tp4 takes 24.0 ms for a request alone" in " ".join(capsys.readouterr().out.split())


def test_and_what_none_of_some_sizes_does(tmp_path, capsys) -> None:
    path = lengths(tmp_path)
    arguments = ["plan", str(path), "--slo", "ttft=500ms", "--rate", "80", "--seeds", "2", "--jobs", "1", "--most", "1"]
    assert main(arguments) == 1
    assert "1 engine of 70b-tp4 answers " in capsys.readouterr().out


def test_each_class_must_be_answered(tmp_path, capsys) -> None:
    path = tmp_path / "mixed.jsonl"
    lines = [
        {"timestamp": 100 * n, "input_length": (200, 40_000)[n % 20 == 0], "output_length": 5,
         "class": ("chat", "batch")[n % 20 == 0]} for n in range(60)
    ]  # fmt: skip
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert main(["plan", str(path), "--slo", "ttft=2s"]) == 1
    assert "of the requests of class batch within a TTFT of 2 s" in " ".join(capsys.readouterr().out.split())
    code = main(["plan", str(path), "--slo", "ttft=2s", "--slo", "batch:ttft=60s", "--seeds", "2", "--jobs", "1"])
    assert code == 0
    assert "within ttft=2s batch:ttft=60s" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "give the objectives: --slo ttft=2s,tpot=50ms"),
        (["--slo", "chat:ttft=2s"], "mooncake_conversation has no requests of chat:ttft=2s"),
        (["--slo", "ttft=2s", "--rate", "0"], "--rate must be above 0"),
        (["--slo", "ttft=2s", "--share", "100"], "--share must be above 0 and below 100"),
        (["--slo", "ttft=2s", "--seeds", "1"], "seeds must be at least 2"),
        (["--slo", "ttft=2s", "--most", "0"], "--most must be in 1..10000 engines"),
        (["--slo", "ttft=2s", "--roles", "--most", "1"], "--most must be at least 2 engines with --roles"),
        (["--slo", "ttft=2s", "--machine", "mine"], "there is no machine 'mine'"),
        (["--slo", "ttft=2s", "--policy", "mine"], "there is no policy 'mine'"),
    ],
)
def test_mistakes_are_named(capsys, arguments, said) -> None:
    assert main(["plan", str(EXCERPT), *arguments]) == EXIT_CONFIG
    assert said in capsys.readouterr().err


def test_a_request_that_fits_no_engine_is_named(tmp_path, capsys) -> None:
    machine = tmp_path / "small.yaml"
    machine.write_text("like: 8b-h100\nkv_tokens: 600\n")
    assert main(["plan", str(lengths(tmp_path)), "--slo", "ttft=2s", "--machine", str(machine)]) == EXIT_CONFIG
    assert "does not fit small, whose KV memory has 600: choose a larger machine" in capsys.readouterr().err


@pytest.mark.slow
def test_how_many_of_which_role(tmp_path, capsys) -> None:
    """Prompts of 4,000 tokens between tokens that come every 30 ms: the fewest engines compute them apart."""
    plot = tmp_path / "plan.png"
    path = lengths(tmp_path, count=40, prompt=4_000, output=60)
    code = main(
        ["plan", str(path), "--slo", "ttft=3s,tpot=30ms", "--rate", "4", "--seeds", "2", "--jobs", "1", "--share", "95",
         "--roles", "--plot", str(plot)]
    )  # fmt: skip
    assert code == 0
    out = capsys.readouterr().out
    assert "prompts and answers together, within" in out
    assert "prompts computed apart, within" in out
    text = " ".join(out.split())
    apart = re.search(r"(\d+) engines of 70b-tp4, (\d+) for prompts and (\d+) for answers, answer", text)
    together = re.search(r"(\d+) engines? of 70b-tp4 answers? ", text)
    assert apart is not None
    assert together is not None
    assert int(apart[1]) == int(apart[2]) + int(apart[3])
    assert f"{apart[2]}p + {apart[3]}d " in out
    assert int(apart[1]) <= int(together[1])
    assert plot.stat().st_size > 10_000


def test_a_policy_without_two_legs_knows_no_roles(tmp_path, capsys) -> None:
    arguments = ["--slo", "ttft=2s", "--seeds", "2", "--jobs", "1", "--roles", "--policy", "llm-d"]
    assert main(["plan", str(lengths(tmp_path, count=20)), *arguments]) == EXIT_CONFIG
    assert "llm-d: has no handler of the type 'prefill-decode' for fleets with roles" in capsys.readouterr().err
