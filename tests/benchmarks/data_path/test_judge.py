"""Medians, ratios of one round, and targets."""

from __future__ import annotations

import io
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from benchmarks.data_path.__main__ import _chosen
from benchmarks.data_path.builds import COMPILED, KVGATE, PURE
from benchmarks.data_path.judge import BY_NAME, Results, Verdict, lost, root_mean_square, verdicts
from benchmarks.data_path.measure import ENCODER, Sample
from benchmarks.data_path.plan import COLUMNS, LAG, TARGETS, UNASKED
from benchmarks.data_path.rows import AGAIN, cache_aware, names
from benchmarks.data_path.show import draw, tables, targets, told

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
    found = {verdict.target.column: verdict for verdict in verdicts(Results(samples()), PEERS, {KVGATE: PURE})}
    assert set(found) == {"answer-2-known", "latency-64", "long-known"}
    assert found["answer-2-known"].met
    assert found["answer-2-known"].against == "sglang-router-cache"
    assert found["latency-64"].value == pytest.approx(0.75)
    assert found["long-known"].value == pytest.approx(8.25), "milliseconds"
    assert not found["long-known"].met
    assert not found["long-known"].missed, "without equal rows nobody can tell whether it is noise"


def test_another_build_is_judged_by_its_own_kind() -> None:
    both = [*samples(), Sample(0, COMPILED, "answer-2-known", 420.0), Sample(0, "old", "answer-2-known", 420.0)]
    kinds = {KVGATE: PURE, COMPILED: COMPILED, "old": PURE}
    found = {verdict.row: verdict for verdict in verdicts(Results(both), PEERS, kinds) if verdict.target is TARGETS[0]}
    assert found["old"].value == found[COMPILED].value == pytest.approx(2.1)
    assert found["old"].met
    assert not found[COMPILED].met


def test_unasked_is_hundredths_of_a_core() -> None:
    seen = [Sample(number, KVGATE, UNASKED.name, value) for number, value in enumerate((0.5, 0.9, 0.6))]
    (verdict,) = verdicts(Results(seen), PEERS, {KVGATE: PURE})
    assert (verdict.target.column, verdict.value, verdict.met) == (UNASKED.name, 0.6, True)


def equals(differ: float, column: str = "answer-2-known") -> list[Sample]:
    """The equal row in three rounds: ``differ`` times as much as kvgate, then as much less, then the same."""
    mine = {sample.round: sample for sample in samples() if sample.row == KVGATE and sample.column == column}
    return [
        replace(sample, row=AGAIN, cpu=sample.cpu * times)
        for sample, times in zip(mine.values(), (differ, 1 / differ, 1.0), strict=True)
    ]


def test_noise_is_what_equal_rows_differ_by() -> None:
    assert Results(samples()).noise("answer-2-known") is None
    results = Results([*samples(), *equals(1.1)])
    assert results.noise("answer-2-known") == pytest.approx(1.1 ** math.sqrt(2 / 3) - 1)
    assert results.noise("long-known") == results.noise("answer-2-known"), "of all columns of a unit"
    assert results.noise("latency-64") is None
    both = Results([*samples(), *equals(1.1), *equals(1.1, "long-known")])
    assert both.noise("long-known") == pytest.approx(results.noise("long-known"))


def test_root_mean_square_is_the_same_either_way() -> None:
    assert root_mean_square([2.0]) == root_mean_square([0.5]) == pytest.approx(1.0)
    assert root_mean_square([1.0, 1.0]) == 0.0
    assert root_mean_square([-3.0, 0.0]) is None, "an added latency below nothing says nothing"
    assert root_mean_square([]) is None


@given(st.lists(st.floats(0.2, 5.0), min_size=1, max_size=20))
def test_noise_is_between_the_least_and_the_most(ratios: list[float]) -> None:
    far = [max(ratio, 1 / ratio) - 1 for ratio in ratios]
    noise = root_mean_square(ratios)
    assert noise is not None
    assert min(far) - 1e-9 <= noise <= max(far) + 1e-9


def test_missed_is_more_than_twice_the_noise() -> None:
    def verdict(value: float, noise: float | None) -> Verdict:
        return Verdict(TARGETS[0], KVGATE, PURE, "smg-cache", value, noise)

    most = TARGETS[0].pure
    assert not verdict(most, 0.0).missed
    assert verdict(most * 1.01, 0.0).missed
    assert not verdict(most * 1.09, 0.05).missed
    assert not verdict(most * 1.09, 0.05).met, "that it is no more than the noise makes it not met"
    assert verdict(most * 1.11, 0.05).missed
    assert not verdict(most * 9, None).missed


def test_lost_is_what_was_met_on_the_page() -> None:
    missed = [
        Verdict(target, row, kind, None, 100.0, 0.05)
        for target in TARGETS[:2]
        for row, kind in ((KVGATE, PURE), (COMPILED, COMPILED), ("old", PURE))
    ]
    assert lost(missed, frozenset()) == []
    met = frozenset({(TARGETS[0].name, PURE), (TARGETS[1].name, COMPILED)})
    assert [(each.target, each.row) for each in lost(missed, met)] == [(TARGETS[0], KVGATE), (TARGETS[1], COMPILED)]


def test_every_target_has_its_column() -> None:
    columns = {column.name for column in COLUMNS}
    assert len(columns) == len(COLUMNS)
    for target in TARGETS:
        assert target.column in columns
        assert target.compiled <= target.pure
    assert LAG.column not in columns
    assert len({target.name for target in (*TARGETS, LAG)}) == len(TARGETS) + 1, "the page knows them by their names"


def test_rows_are_each_builds_and_kvgates_twice() -> None:
    rows = names([KVGATE, COMPILED])
    assert rows[:5] == ["kvgate", "kvgate-again", "kvgate-untokenized", "compiled", "compiled-untokenized"]
    assert set(cache_aware()) <= set(rows)
    assert len(set(rows)) == len(rows)


def test_answers_before_the_engines_are_seen() -> None:
    late = BY_NAME["latency-64-late"]
    assert late.too_early(4.0)
    assert not late.too_early(late.late)
    assert not BY_NAME["latency-64"].too_early(0.5)


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
    targets(verdicts(results, PEERS, {KVGATE: PURE}), console)
    shown = written.getvalue()
    assert "165 (0.75)" in shown
    assert shown.count("NOT MET") == 1
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


def test_what_stands_beside_the_tables() -> None:
    assert told(Results(samples()), {}) == []
    seen = [*samples(), *equals(1.1), Sample(0, KVGATE, UNASKED.name, 0.61)]
    builds, differ, unasked = told(Results(seen), {KVGATE: "kvgate 0.1 (pure Python)"})
    assert builds == "Builds: kvgate is kvgate 0.1 (pure Python)"
    assert differ == "Equal rows of a round differ by 8.1% in µs (root mean square)"
    assert unasked == "Unasked, % of a core: kvgate 0.61"
