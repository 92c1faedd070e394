"""Tables, Markdown and JSON of runs with tenants."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from gateway.commands.replay.tenants.figures import ALL, FIGURES, LIGHT
from gateway.commands.replay.tenants.report import gather, markdown, save, tables
from gateway.errors import ConfigError
from tests.commands.replay.tenants.outcomes import outcomes


def printed() -> str:
    out = StringIO()
    for one in gather(outcomes()):
        for table in tables(one):
            Console(file=out, width=200).print(table)
    return out.getvalue()


def test_runs_are_gathered_by_scene_and_load() -> None:
    found = gather(outcomes())
    assert [(one.scene, one.load) for one in found] == [("s", 1.0), ("s", 1.2), ("t", 1.0), ("t", 1.2)]
    assert found[0].name == "s, 1 times what the fleet can serve: 10.0 requests/s, mean of 2 seeds"
    assert list(found[0].outcomes) == ["at-once", "fair-cost"]
    assert found[0].tenants == ["a", "b"]
    assert found[0].mean("at-once", LIGHT, "ttft_p50") == pytest.approx(0.45)
    assert found[0].mean("at-once", "nobody", "ttft_p50") == 0


def test_the_tables_have_all_ways_and_tenants() -> None:
    text = printed()
    assert "…" not in text
    for word in ("at-once", "fair-cost", "TTFT p50, s", "goodput, %", "shed, %", "s, 1.2 times", "mean of 2 seeds"):
        assert word in text
    assert text.count("0.45") == 4 * 3  # of the light ones, and of either tenant


def test_markdown_has_the_table_of_ways() -> None:
    text = markdown(gather(outcomes())[0])
    lines = text.splitlines()
    assert lines[0] == "**s, 1 times what the fleet can serve: 10.0 requests/s, mean of 2 seeds**"
    assert lines[4].startswith("| at-once | 0.45 | 4.50 | 90.0 | 9.0 |")
    assert {line.count("|") for line in lines[2:]} == {lines[2].count("|")}


def test_json_has_all_figures(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "it.json"
    save(gather(outcomes()), {"seconds": 20.0}, path)
    found = json.loads(path.read_text())
    assert found["settings"] == {"seconds": 20.0}
    assert len(found["runs"]) == len(outcomes())
    assert set(found["runs"][0]["groups"][ALL]) == {"requests", *FIGURES}
    with pytest.raises(ConfigError, match="cannot be written"):
        save(gather(outcomes()), {}, Path("/dev/null/it.json"))
