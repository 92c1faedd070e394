"""The tables of the documentation: in their places, again and again, and nothing else changed; and read again."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.data_path import page
from benchmarks.data_path.builds import COMPILED, KVGATE, PURE
from benchmarks.data_path.judge import Results, Verdict, verdicts
from benchmarks.data_path.lag import judged
from benchmarks.data_path.measure import Sample
from benchmarks.data_path.plan import LAG, TARGETS, UNASKED
from gateway.errors import ConfigError
from tests.benchmarks.data_path.test_judge import PEERS, equals, samples

VERSIONS = {KVGATE: "kvgate 0.1 (pure Python)"}


@pytest.fixture
def pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Copies of the real ones are written."""
    for name in ("PAGE", "README"):
        there = tmp_path / name
        there.write_text(getattr(page, name).read_text())
        monkeypatch.setattr(page, name, there)
    monkeypatch.setattr(page, "CHART", tmp_path / "chart.png")
    monkeypatch.setattr("os.getloadavg", lambda: (0.5, 1.0, 1.5))  # it is written down, and another a moment later
    return tmp_path


def test_tables_are_put_in_their_places(pages: Path) -> None:
    before = page.PAGE.read_text()
    compiled = [Sample(number, COMPILED, "answer-2-known", 300.0) for number in range(3)]
    results = Results([*samples(), *equals(1.1), *compiled, Sample(0, KVGATE, UNASKED.name, 0.61)])
    found = verdicts(results, PEERS, {KVGATE: PURE, COMPILED: COMPILED, "smg-cache": PURE})
    page.write(results, found, PEERS, VERSIONS)
    written = page.PAGE.read_text()
    assert "| kvgate | 165 (0.75) | 8,250 (0.75) |" in written
    assert (
        "| 2 KB known prompt, to the cheapest peer (sglang-router-cache) | pure Python | 2.40 | 0.75 | 8.1% | met |"
        in written
    )
    assert "(sglang-router-cache) | compiled | 1.90 | 1.36 | 8.1% | met |" in written
    assert written.count("| 2 KB known prompt") == 2, "no other rows than the two gateways'"
    assert "kvgate 0.61" in written
    assert VERSIONS[KVGATE] in written
    readme = page.README.read_text()
    assert "| kvgate, pure Python | 165 (0.75) |" in readme
    assert "| kvgate, compiled | 300 (1.36) |" in readme
    assert "kvgate-again" not in readme
    assert (pages / "chart.png").exists()
    page.write(results, found, PEERS, VERSIONS)
    assert page.PAGE.read_text() == written

    def words(text: str) -> str:
        return re.sub(r"<!-- data-path:(\w+) -->.*?<!-- /data-path:\1 -->", "", text, flags=re.DOTALL)

    assert words(written) == words(before)


def test_what_is_met_is_read_from_what_was_written(pages: Path) -> None:
    found = [
        Verdict(TARGETS[0], KVGATE, PURE, "sglang-router-cache", 2.0, 0.03),
        Verdict(TARGETS[0], COMPILED, COMPILED, "sglang-router-cache", 2.0, 0.03),
        Verdict(TARGETS[-1], KVGATE, PURE, None, 0.7, None),
    ]
    page.put({"targets": page.targets(found), "lag": page.targets([judged(KVGATE, PURE, [9.0, 12.0])])})
    assert page.met() == {(TARGETS[0].name, PURE), (TARGETS[-1].name, PURE)}
    page.put({"lag": page.targets([judged(KVGATE, PURE, [9.0, 10.0])])})
    assert page.met() == {(TARGETS[0].name, PURE), (TARGETS[-1].name, PURE), (LAG.name, PURE)}
    page.put({"targets": "", "lag": ""})
    assert page.met() == frozenset()


def test_every_table_has_its_place(pages: Path) -> None:
    for name in ("answers", "streams", "latency", "targets", "machine", "lag", "steps"):
        page.put({name: "x"})
    with pytest.raises(ConfigError, match="no place"):
        page.put({"other": "x"})
