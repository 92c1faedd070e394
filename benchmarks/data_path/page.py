"""The data path's tables in docs/benchmarks.md and in the README, and its chart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.data_path.judge import Results, Verdict
from benchmarks.data_path.plan import CHEAPEST
from benchmarks.data_path.rows import FLOOR, HERE, KVGATE, PLAIN
from benchmarks.data_path.show import cell, draw, machine
from benchmarks.marks import fill

PAGE, README = HERE / "docs" / "benchmarks.md", HERE / "README.md"
CHART = HERE / "docs" / "images" / "data-path.png"

BRIEF = {
    "stream-2-known": "stream of 64 events, 2 KB prompt, µs",
    "answer-2-known": "2 KB prompt, µs",
    "answer-128-known": "128 KB prompt, µs",
    "latency-1": "added p50, ms",
}
"""The README's columns: all prompts are known but for their last 64 bytes."""


def write(results: Results, verdicts: Sequence[Verdict], peers: Sequence[str], idle: Mapping[str, float]) -> None:
    """Put everything in its place. Raises ConfigError where a page lacks one."""
    cpu = [column.name for column in results.columns if not column.latency]
    tables = {
        "answers": table(results, peers, [name for name in cpu if name.startswith("answer") or name == "long-known"]),
        "streams": table(results, peers, [name for name in cpu if name.startswith("stream")]),
        "latency": table(results, peers, [column.name for column in results.columns if column.latency]),
        "targets": targets(verdicts),
        "machine": f"{machine()}. Unasked, in % of a core: "
        + ", ".join(f"{row} {share * 100:.1f}" for row, share in idle.items()),
    }
    text = PAGE.read_text()
    for name, made in tables.items():
        text = fill(PAGE, text, f"data-path:{name}", made)
    brief = [row for row in results.rows if row in (KVGATE, FLOOR, PLAIN, *peers)]
    readme = fill(README, README.read_text(), "data-path:brief", table(results, (), list(BRIEF), brief))
    PAGE.write_text(text)
    README.write_text(readme)
    draw(results, (KVGATE,), CHART)


def table(results: Results, peers: Sequence[str], columns: Sequence[str], rows: Sequence[str] | None = None) -> str:
    """Each figure, and in brackets its ratio to the cheapest of ``peers``; none where there are no peers."""
    titles = [BRIEF[name] if rows is not None else name for name in columns]
    lines = [f"| | {' | '.join(titles)} |", "|---|" + "--:|" * len(columns)]
    for row in results.rows if rows is None else rows:
        cells = [cell(results, row, name, peers) for name in columns]
        if any(cells):
            lines.append(f"| {row} | {' | '.join(cells)} |")
    return "\n".join(lines)


def targets(verdicts: Sequence[Verdict]) -> str:
    lines = ["| target | at most | measured | |", "|---|--:|--:|---|"]
    for verdict in verdicts:
        target = verdict.target
        against = f" ({verdict.against})" if target.against == CHEAPEST else ""
        met = "met" if verdict.met else "**not met**"
        lines.append(f"| {target.name}{against} | {target.most:.2f} | {verdict.value:.2f} | {met} |")
    return "\n".join(lines)
