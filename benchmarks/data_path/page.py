"""The data path's tables in docs/benchmarks.md and in the README, and its chart; and what the page says is met."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from benchmarks.data_path.builds import COMPILED, HERE, KVGATE
from benchmarks.data_path.judge import Results, Verdict
from benchmarks.data_path.rows import FLOOR, PLAIN
from benchmarks.data_path.show import cell, draw, machine, share, told
from benchmarks.marks import fill

PAGE, README = HERE / "docs" / "benchmarks.md", HERE / "README.md"
CHART = HERE / "docs" / "images" / "data-path.png"

BRIEF = {
    "answer-2-known": "2 KB prompt, µs",
    "stream-2-known": "stream of 64 events, 2 KB prompt, µs",
    "answer-128-known": "128 KB prompt, µs",
    "long-known": "100,000 tokens, µs",
    "latency-1": "added p50, ms",
    "latency-64": "the same at 64 connections, ms",
}
"""The README's columns: all prompts are known but for their last 64 bytes."""

CALLED = {KVGATE: "kvgate, pure Python", COMPILED: "kvgate, compiled"}
"""The README's names of rows, where they are others."""

JUDGED = ("targets", "lag")
"""The page's tables of targets."""

HEAD = ("target", "build", "at most", "measured", "noise", "")


def write(results: Results, verdicts: Sequence[Verdict], peers: Sequence[str], versions: Mapping[str, str]) -> None:
    """Put everything in its place. ``versions``: of the builds, by their rows. Raises ConfigError where a page lacks a
    place."""
    cpu = [column.name for column in results.columns if column.connections and not column.latency]
    ours = [verdict for verdict in verdicts if verdict.row in CALLED]
    put(
        {
            "answers": table(results, peers, [name for name in cpu if not name.startswith("stream")]),
            "streams": table(results, peers, [name for name in cpu if name.startswith("stream")]),
            "latency": table(results, peers, [column.name for column in results.columns if column.latency]),
            "targets": targets(ours),
            "machine": ". ".join((machine(), *told(results, versions))) + ".",
        }
    )
    brief = [row for row in results.rows if row in (*CALLED, FLOOR, PLAIN, *peers)]
    readme = fill(README, README.read_text(), "data-path:brief", table(results, peers, list(BRIEF), brief))
    README.write_text(readme)
    draw(results, (KVGATE, COMPILED), CHART)


def put(tables: Mapping[str, str]) -> None:
    """Write each of ``tables`` to its place on the page. Raises ConfigError where there is none."""
    text = PAGE.read_text()
    for name, made in tables.items():
        text = fill(PAGE, text, f"data-path:{name}", made)
    PAGE.write_text(text)


def table(results: Results, peers: Sequence[str], columns: Sequence[str], rows: Sequence[str] | None = None) -> str:
    """Each figure, and in brackets its ratio to the cheapest of ``peers``; ``rows``: the README's."""
    titles = [BRIEF[name] if rows is not None else name for name in columns]
    lines = [f"| | {' | '.join(titles)} |", "|---|" + "--:|" * len(columns)]
    for row in results.rows if rows is None else rows:
        cells = [cell(results, row, name, peers) for name in columns]
        if any(cells):
            title = row if rows is None else CALLED.get(row, row)
            lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def targets(verdicts: Sequence[Verdict]) -> str:
    lines = [f"| {' | '.join(HEAD)} |", "|---|---|--:|--:|--:|---|"]
    for verdict in verdicts:
        against = f" ({verdict.against})" if verdict.against else ""
        word = "met" if verdict.met else "**not met**"
        lines.append(
            f"| {verdict.target.name}{against} | {verdict.kind} | {verdict.most:.2f} | {verdict.value:.2f} "
            f"| {share(verdict.noise)} | {word} |"
        )
    return "\n".join(lines)


def met() -> frozenset[tuple[str, str]]:
    """The targets that the page says are met: each one's name, and the kind of the build."""
    found = set()
    text = PAGE.read_text()
    for name in JUDGED:
        for between in re.findall(rf"<!-- data-path:{name} -->(.*?)<!-- /data-path:{name} -->", text, re.DOTALL):
            for line in between.strip().splitlines():
                cells = [each.strip() for each in line.strip("|").split("|")]
                if len(cells) == len(HEAD) and cells[-1] == "met":
                    found.add((re.sub(r" \([\w-]+\)$", "", cells[0]), cells[1]))
    return frozenset(found)
