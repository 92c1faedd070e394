"""The page of measurements: tables between their marks, the words around them untouched."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks import placement
from benchmarks.placement import AS_IT_IS, PAGE, POLICIES, VARIANTS, fits_of, jobs_of, measure, variants_of
from benchmarks.placement_grid import Traces, grid, title
from benchmarks.placement_page import charts, geometric_mean, markdown, overall, tied, verdicts, write
from gateway.commands.replay.fleet import kinds
from gateway.commands.replay.report import gather
from gateway.commands.replay.scene import Cell
from gateway.commands.replay.sources import TraceSource
from gateway.commands.replay.statistics import METRICS
from gateway.errors import ConfigError
from tests.commands.replay.runs import comparison, summary

EXCERPT = Path(__file__).parents[1] / "data" / "replay" / "mooncake_conversation.jsonl"
CELLS = [comparison("one"), comparison("two")]
FITS = [comparison("noisy")]


def test_tables_are_put_between_their_marks_again_and_again(tmp_path) -> None:
    page = tmp_path / "benchmarks.md"
    page.write_text(PAGE.read_text())
    write(page, CELLS, CELLS, FITS)
    first = page.read_text()
    assert "| one | 79.0 | llm-d 74.0 | +5.0 pp (+5.0..+5.0) | yes | 1.26 | 1.00 (default) | " in first
    assert "### two" in first
    assert "12 runs of 1,000 to 1,000 requests" in first
    write(page, CELLS, CELLS, FITS)
    assert page.read_text() == first
    write(page, [comparison("three")], CELLS, FITS)
    assert "### two" not in page.read_text()

    def words(text: str) -> list[str]:
        return [line for line in text.splitlines() if line and line[0] not in "|#" and "runs of" not in line]

    kept = words(page.read_text())
    assert all(line in kept for line in words(PAGE.read_text()) if not line.startswith(("12", "Against", "goodput")))


def test_a_page_without_a_mark_is_left_as_it_is(tmp_path) -> None:
    page = tmp_path / "benchmarks.md"
    page.write_text("nothing")
    with pytest.raises(ConfigError, match="has no place for 'placement:verdicts'"):
        write(page, CELLS, CELLS, FITS)
    assert page.read_text() == "nothing"


def test_a_verdict_names_who_is_better() -> None:
    cell = gather(
        "lost",
        {},
        [summary("default", seed, goodput=0.6 + 0.01 * seed, ttft_mean=1.2) for seed in (1, 2, 3)]
        + [summary("lmetric", seed, goodput=0.7 + 0.01 * seed, ttft_mean=1.0) for seed in (1, 2, 3)],
    )
    assert "| lmetric 72.0 | -10.0 pp (-10.0..-10.0) | **no**: lmetric | 1.20 | 1.20 (lmetric) |" in verdicts([cell])
    rows = overall([cell]).splitlines()
    assert rows[2].startswith("| lmetric | 1.00 |")  # the best first
    assert rows[3].startswith("| default | 1.20 |")


def test_a_verdict_asks_every_other_policy() -> None:
    """The best mean is so noisy that it proves nothing; a worse one is better at every seed."""
    goodput = {"default": (0.50, 0.50, 0.50), "noisy": (0.40, 0.55, 0.70), "sure": (0.540, 0.541, 0.542)}
    cell = gather(
        "lost",
        {},
        [
            summary(policy, seed, goodput=value)
            for policy, values in goodput.items()
            for seed, value in enumerate(values, start=1)
        ],
    )
    assert "| lost | 50.0 | noisy 55.0 | -5.0 pp (-42.3..+32.3) | **no**: sure |" in verdicts([cell])


def test_charts_are_beside_the_page(tmp_path) -> None:
    charts(tmp_path / "benchmarks.md", CELLS)
    assert sorted(path.name for path in (tmp_path / "images").iterdir()) == [
        "placement-goodput.png",
        "placement-ttft.png",
    ]


def test_the_grid_is_the_documented_one() -> None:
    some = Path("trace.jsonl")
    cells = grid(Traces(some, some, some))
    assert len({title(cell) for cell in cells}) == len(cells) == 36
    assert all(cell.endpoints == 8 for cell in cells)
    assert len(grid(Traces(some))) == 36 - 8 - 5
    names = {job.policy.name for job in jobs_of(cells[0], POLICIES, range(1, 3))}
    assert len(names) == 11
    assert variants_of(cells[0], POLICIES, range(1, 3)) == []
    variants = variants_of(cells[1], POLICIES, range(1, 3))
    assert len({(job.policy.name, job.seed) for job in variants}) == len(variants) == 10
    assert sum(bool(variants_of(cell, POLICIES, range(1, 3))) for cell in cells) == 4
    fits = fits_of(cells[0], range(1, 3))
    assert [(job.policy.name, job.cell.fitted) for job in fits] == [("fitted", True)] * 2 + [("not fitted", False)] * 2
    assert all(job.cell.noise for job in fits)


def test_the_variants_are_held_against_the_default_though_it_is_not_compared(monkeypatch) -> None:
    cell = Cell(TraceSource(EXCERPT, first=20), fleet=kinds("2 x 70b-tp4"), speed=0.45)
    for names, compared in (("random", ["random"]), ("random,default", ["random", "default"])):
        monkeypatch.setattr(placement, "VARIED", (cell.name,))
        found = measure(cell, names, range(1, 2), 1, Console(file=StringIO()))
        assert list(found.compared.summaries) == compared
        assert list(found.varied.summaries) == [AS_IT_IS, *VARIANTS]
        assert list(found.fitted.summaries) == ["fitted", "not fitted"]


def test_the_first_run_may_be_told_to_resume(tmp_path, monkeypatch) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE.read_text())
    cell = Cell(TraceSource(EXCERPT, first=20), fleet=kinds("2 x 70b-tp4"), speed=0.45)
    monkeypatch.setattr(placement, "grid", lambda traces: [cell])
    arguments = [str(EXCERPT), "--policies", "default,random", "--seeds", "2", "--jobs", "1", "--resume"]
    monkeypatch.setattr("sys.argv", ["x", *arguments, "--json", str(tmp_path / "it.json"), "--page", str(page)])
    assert placement.main() == 0
    written = page.read_text()
    monkeypatch.setattr(placement, "measure", None)  # all is there
    assert placement.main() == 0
    assert page.read_text() == written
    page.write_text(PAGE.read_text())
    monkeypatch.setattr("sys.argv", ["x", "--draw", "--json", str(tmp_path / "it.json"), "--page", str(page)])
    assert placement.main() == 0
    assert page.read_text() == written, "drawn from the figures alone"


def test_what_is_run_needs_its_trace(tmp_path, monkeypatch, capsys) -> None:
    for trace, said in (([], "there is no trace given"), ([str(tmp_path / "none")], "none")):
        monkeypatch.setattr("sys.argv", ["x", *trace, "--json", str(tmp_path / "it.json")])
        assert placement.main() == 2
        assert said in capsys.readouterr().err


def test_markdown_is_two_tables_with_the_best_in_bold() -> None:
    text = markdown(comparison())
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert all(line.count("|") == len(METRICS) + 2 for line in rows[:4])
    assert "| default | **1.26** |" in text
    assert "| llm-d | 1.40 |" in text
    assert "| llm-d | +11.3 % (+11.1..+11.4) |" in text


def test_who_is_as_good() -> None:
    goodput, ttft = METRICS["goodput"], METRICS["ttft_mean"]
    by_policy = {
        "a": [summary("a", seed, goodput=0.70 + 0.01 * seed, ttft_mean=1.0) for seed in (1, 2, 3)],
        "b": [summary("b", seed, goodput=0.71 + 0.009 * seed, ttft_mean=1.1) for seed in (1, 2, 3)],
        "c": [summary("c", seed, goodput=0.80 + 0.01 * seed, ttft_mean=1.2) for seed in (1, 2, 3)],
    }
    assert not tied(goodput, by_policy["a"], by_policy["c"])
    assert tied(goodput, by_policy["c"], by_policy["a"])
    assert not tied(ttft, by_policy["b"], by_policy["a"])
    noisy = [summary("d", seed, goodput=0.80 + 0.2 * (-1) ** seed) for seed in (1, 2, 3)]
    assert tied(goodput, by_policy["a"], noisy)


def test_geometric_means() -> None:
    assert geometric_mean([1.0, 4.0]) == pytest.approx(2.0)
