"""The tables of the documentation: in their places, again and again, and nothing else changed."""

from __future__ import annotations

import re

from benchmarks.data_path import page
from benchmarks.data_path.judge import Results, verdicts
from tests.benchmarks.data_path.test_judge import PEERS, samples


def test_tables_are_put_in_their_places(tmp_path, monkeypatch) -> None:
    for name in ("PAGE", "README"):
        there = tmp_path / name
        there.write_text(getattr(page, name).read_text())
        monkeypatch.setattr(page, name, there)
    monkeypatch.setattr(page, "CHART", tmp_path / "chart.png")
    monkeypatch.setattr("os.getloadavg", lambda: (0.5, 1.0, 1.5))  # it is written down, and another a moment later
    before = page.PAGE.read_text()
    results = Results(samples())
    judged = verdicts(results, PEERS, ["kvgate"])
    page.write(results, judged, PEERS, {"kvgate": 0.0123})
    written = page.PAGE.read_text()
    assert "| kvgate | 165 (0.75) | 8,250 (0.75) |" in written
    assert "(sglang-router-cache) | 1.00 | 0.75 | met |" in written
    assert "kvgate 1.2" in written
    assert "| kvgate |  | 165 |  |  |" in page.README.read_text()
    assert (tmp_path / "chart.png").exists()
    page.write(results, judged, PEERS, {"kvgate": 0.0123})
    assert page.PAGE.read_text() == written

    def words(text: str) -> str:
        return re.sub(r"<!-- data-path:(\w+) -->.*?<!-- /data-path:\1 -->", "", text, flags=re.DOTALL)

    assert words(written) == words(before)
