"""Medians, ratios of one round, and targets."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from benchmarks.data_path.__main__ import _chosen
from benchmarks.data_path.judge import Results, verdicts
from benchmarks.data_path.measure import ENCODER, Sample
from benchmarks.data_path.plan import COLUMNS, TARGETS
from benchmarks.data_path.rows import cache_aware, names
from benchmarks.data_path.show import draw, tables, targets

PEERS = ["smg-cache", "sglang-router-cache"]


def samples() -> list[Sample]:
    """Three rounds; the second is three times as slow for all."""
    cpu = {"kvgate": 150.0, "floor": 50.0, "smg-cache": 400.0, "sglang-router-cache": 200.0, "smg-turns": 20.0}
    found = []
    for number, slow in enumerate((1.0, 3.0, 1.1)):
        for row, value in cpu.items():
            found.append(Sample(number, row, "answer-2-known", value * slow, engines=30 * slow, driver=20.0))
            found.append(Sample(number, row, "latency-64", 0.0, p50=(value / 10 + 4) * slow))
            found.append(Sample(number, row, "long-known", value * 50 * slow))
        found.append(Sample(number, "direct", "latency-64", 0.0, p50=4 * slow))
    return found


def test_ratios_are_of_one_round() -> None:
    results = Results(samples())
    assert results.value("kvgate", "answer-2-known") == pytest.approx(165)
    assert results.cheapest("answer-2-known", PEERS) == "sglang-router-cache"
    assert results.ratio("kvgate", "sglang-router-cache", "answer-2-known") == pytest.approx(0.75)
    assert results.value("kvgate", "latency-64") == pytest.approx(16.5), "what is added to the engine's own"
    assert results.value("kvgate", "stream-2-known") is None
    assert results.cheapest("stream-2-known", PEERS) is None


def test_targets_are_those_that_the_run_can_tell_of() -> None:
    found = {verdict.target.column: verdict for verdict in verdicts(Results(samples()), PEERS, ["kvgate"])}
    assert set(found) == {"answer-2-known", "latency-64", "long-known"}
    assert found["answer-2-known"].met
    assert found["answer-2-known"].against == "sglang-router-cache"
    assert found["latency-64"].value == pytest.approx(0.75)
    assert found["long-known"].value == pytest.approx(8.25), "milliseconds"
    assert found["long-known"].met


def test_another_checkout_is_judged_as_well() -> None:
    both = [*samples(), Sample(0, "old", "answer-2-known", 500.0)]
    found = {verdict.row: verdict for verdict in verdicts(Results(both), PEERS, ["kvgate", "old"])}
    assert found["old"].value == pytest.approx(2.5)
    assert not found["old"].met


def test_every_target_has_its_row_and_column() -> None:
    rows = names({"kvgate": COLUMNS})  # type: ignore[dict-item]
    columns = {column.name for column in COLUMNS}
    assert len(columns) == len(COLUMNS)
    for target in TARGETS:
        assert target.row in rows
        assert target.column in columns
    assert set(cache_aware()) <= set(rows)


def test_names_and_patterns() -> None:
    every = ["kvgate", "smg-cache", "smg-turns"]
    assert _chosen(["smg-*", "kvgate"], every) == every
    assert _chosen(["*-cache"], every) == ["smg-cache"]
    with pytest.raises(SystemExit, match="there is none of that name"):
        _chosen(["kvgat"], every)


def test_table_and_chart(tmp_path) -> None:
    results = Results(samples())
    written = io.StringIO()
    console = Console(file=written, width=200)
    tables(results, PEERS, console)
    targets(verdicts(results, PEERS, ["kvgate"]), console)
    shown = written.getvalue()
    assert "165 (0.75)" in shown
    assert "NOT MET" not in shown
    draw(results, ["kvgate"], tmp_path / "chart.png")
    assert (tmp_path / "chart.png").stat().st_size > 1000


def test_who_was_not_measured_has_no_bar(tmp_path) -> None:
    columns = ("answer-2-known", "answer-2-fresh")
    measured = [Sample(0, "kvgate", column, 1500.0) for column in columns]
    draw(Results([*measured, Sample(0, ENCODER, "answer-2-fresh", 1400.0)]), ["kvgate"], tmp_path / "chart.svg")
    chart = (tmp_path / "chart.svg").read_text()
    assert chart.count("<!-- 1,400 -->") == 1
    assert chart.count("<!-- 1,500 -->") == 2
    assert chart.count("<!-- 0 -->") == len(columns), "at the axes' begin only"
