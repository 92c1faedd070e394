"""docs/metrics.md names every series that there is, with its type and labels, and none that there is not."""

from __future__ import annotations

import re
from pathlib import Path

from gateway.observability.metrics import Metrics

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
ROW = re.compile(r"^\| `(?P<name>kvgate_\w+)` \| (?P<type>\w+) \| (?P<labels>[^|]*?) \| .+ \|$", re.MULTILINE)


def described() -> dict[str, tuple[str, tuple[str, ...]]]:
    return {
        row["name"]: (row["type"], tuple(filter(None, row["labels"].split(", "))))
        for row in ROW.finditer(PAGE.read_text())
    }


def test_the_page_describes_what_there_is(clock, settled) -> None:
    metrics = Metrics(clock, "1")
    metrics.settled(settled())
    metrics.decided("m", 0.001)
    metrics.attempted("m", "a", "decode", "ok")
    metrics.planned("m", "split")
    metrics.prefilled("m", 0.1)
    metrics.handed_over("m", 0.1)
    metrics.fell_back("m", "late")
    metrics.in_flight("a", 1)
    metrics.queued("m", 1)
    metrics.disconnected("m", "queued")
    metrics.tokens_estimated("m", "x")
    metrics.tokens_compared("m", 1, 2)
    metrics.hits_compared("m", "a", 1, 2)
    metrics.plugin_failed("scorer", "x", ValueError())
    metrics.score_refused("x")
    metrics.engine_state("e", False, "refused")
    metrics.scraped("e", True, 0.0)
    metrics.kv_transfers("a", 1.0, {"in_progress": 1})
    metrics.kv_events("a", "stored", 1)
    metrics.kv_gap("a", "lost")
    metrics.kv_stream("a", "live")
    metrics.kv_blocks("m", 1)

    there: dict[str, tuple[str, tuple[str, ...]]] = {}
    for family in metrics.registry.collect():
        if not family.name.startswith("kvgate_"):
            continue
        assert family.samples, f"{family.name} was not counted: this test must call what counts it"
        name = family.name + ("_total" if family.type == "counter" else "")
        there[name] = (family.type, tuple(label for label in family.samples[0].labels if label != "le"))
    assert described() == there


def test_the_queries_use_metrics_that_there_are() -> None:
    names = set(described())
    for query in re.findall(r"```promql\n(.*?)```", PAGE.read_text(), re.DOTALL):
        for used in re.findall(r"kvgate_\w+", query):
            assert re.sub(r"_(bucket|sum|count)$", "", used) in names
