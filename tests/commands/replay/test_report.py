"""Tables on a terminal, JSON."""

from __future__ import annotations

import json
import math
from io import StringIO

import pytest
from rich.console import Console

from benchmarks.placement import load
from gateway.commands.replay.report import change, save, tables
from gateway.commands.replay.statistics import METRICS, Interval
from gateway.errors import ConfigError
from tests.commands.replay.runs import comparison


def printed(seeds: int = 3, width: int = 200) -> str:
    out = StringIO()
    console = Console(file=out, width=width)
    for table in tables(comparison(seeds=seeds), width):
        console.print(table)
    return out.getvalue()


def test_the_tables_have_every_policy_and_figure() -> None:
    text = printed()
    assert "a trace, 0.45 requests/s/endpoint, 8 x 70b-tp4: 1,000 requests, mean of 3 seeds" in text
    for metric in METRICS.values():
        assert metric.title.split()[0] in text
    assert "1.26" in text  # default's mean TTFT: 0.9 * 1.4
    assert "Against default (95 % interval over paired seeds)" in text
    assert "-5.0 pp (-5.0..-5.0)" in text


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_nothing_is_cut_off_however_narrow_the_terminal(width) -> None:
    text = printed(width=width)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    assert text.count("-5.0 pp (-5.0..-5.0)") == 1
    assert "1.020" in text


def test_one_seed_has_no_interval() -> None:
    text = printed(seeds=1)
    assert "1,000 requests, 1 seed" in text
    assert "interval" not in text
    assert "-5.0 pp" in text
    assert ".." not in text


@pytest.mark.parametrize(
    ("metric", "found", "text"),
    [
        ("ttft_mean", Interval(0.25, 0.2, 0.3), "+25.0 % (+20.0..+30.0)"),
        ("goodput", Interval(-0.05, -0.06, -0.04), "-5.0 pp (-6.0..-4.0)"),
        ("goodput", Interval(0.05, -math.inf, math.inf), "+5.0 pp"),
    ],
)
def test_a_change_in_words(metric, found, text) -> None:
    assert change(METRICS[metric], found) == text


def test_json_is_read_back_as_it_was(tmp_path) -> None:
    path = tmp_path / "deep" / "it.json"
    cells = [comparison(), comparison("another", seeds=1)]
    save(cells, path)
    assert load(path) == cells
    assert json.loads(path.read_text())["cells"][0]["summaries"]["llm-d"][2]["seed"] == 3


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 99}', '{"format": 1, "cells": [{"name": 1}]}'])
def test_what_no_replay_wrote(tmp_path, text) -> None:
    path = tmp_path / "it.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"it\.json: "):
        load(path)


def test_files_that_cannot_be(tmp_path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path / "nowhere.json")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        save([comparison()], tmp_path / "file" / "it.json")
