"""``python -m benchmarks.workers``: what a second worker brings and costs, side by side in one run.

The rows are gateways with 1 worker (twice: what these two differ by is the run's noise) and with more, in front of the
same mock engines. ``wrk`` and the engines need processors, too: what they take of each answer stands beside it.

An answer takes more CPU where all processors are busy: processes push each other out of caches, and wake each other up.
So there are gateways of one process that know nothing of each other as well, as many as workers, each with its part of
the connections. What workers take beyond these is what sharing costs; what these take beyond one is the machine's.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.data_path.builds import THIS
from benchmarks.data_path.measure import Bench, Sample, held
from benchmarks.data_path.plan import COLUMNS
from benchmarks.data_path.prompts import text
from benchmarks.data_path.rows import DIRECT, Engines, Row, configuration, gateway, serving
from benchmarks.data_path.usage import resident
from gateway.commands.processes import Processes, free_port, sigterm_raises

NAMES = ("answer-2-known", "stream-2-known")
ONE, AGAIN, APART = "1 worker", "1 worker again", " apart"


def main() -> int:
    options = _parser().parse_args()
    counts = {ONE: 1, AGAIN: 1}
    for count in options.workers:
        counts |= {f"{count} workers": count, f"{count}{APART}": 1}
    columns = [column for column in COLUMNS if column.name in NAMES]
    made, console, samples = text(), Console(width=100), list[Sample]()
    with (
        sigterm_raises(SystemExit(143)),
        tempfile.TemporaryDirectory() as folder,
        Processes(Path(folder)) as processes,
    ):
        engines = Engines(processes, held(made, columns))
        rows = []

        def start(name: str, workers: int) -> Row:
            port = free_port()
            config: dict[str, Any] = configuration(port, engines.urls, made.folder)
            config["listen"]["workers"] = workers
            return Row(name, f"http://127.0.0.1:{port}", gateway(processes, name, config, THIS))

        for name, count in counts.items():
            rows.append(start(name, count))
            if name.endswith(APART):
                others = range(1, int(name.removesuffix(APART)))
                rows[-1].beside = [start(f"{name} {number}", 1) for number in others]
        for row in rows:
            serving(row, made)
        bench = Bench(engines, rows, made, Path(folder), options.seconds)
        for number in range(options.rounds):
            for column in columns:
                # Each round begins with another row, so that nobody always follows the same one.
                in_turn = rows[number % len(rows) :] + rows[: number % len(rows)]
                samples += [bench.one(number, row, column) for row in in_turn]
        memory = {row.name: resident(row.pids) for row in rows}
    console.print(f"{os.cpu_count()} cores, {options.rounds} rounds of {options.seconds} s, medians; load {_load()}")
    for name in NAMES:
        console.print(_table(name, [sample for sample in samples if sample.column == name]))
    for name, count in counts.items():
        if count > 1:
            each = (memory[name] - memory[ONE]) / (count - 1) / 1e6
            console.print(f"memory with {name}: {memory[name] / 1e6:.0f} MB, {each:.0f} MB for each further one")
    return 0


def _table(title: str, samples: Sequence[Sample]) -> Table:
    """Ratios are medians of each round's ratio to ``ONE`` in it."""
    table = Table(
        *("", "answers/s", "to one", "CPU us/answer", "to one", "engines us", "wrk us", "p50 ms", "p99 ms"), title=title
    )
    first = {sample.round: sample for sample in samples if sample.row == ONE}
    for name in dict.fromkeys(sample.row for sample in samples if sample.row != DIRECT):
        own = [sample for sample in samples if sample.row == name]
        table.add_row(
            name,
            f"{median(sample.rate for sample in own):,.0f}",
            f"{median(sample.rate / first[sample.round].rate for sample in own):.2f}",
            f"{median(sample.cpu for sample in own):,.0f}",
            f"{median(sample.cpu / first[sample.round].cpu for sample in own):.2f}",
            *(f"{median(getattr(sample, key) for sample in own):,.0f}" for key in ("engines", "driver")),
            *(f"{median(getattr(sample, key) for sample in own):,.2f}" for key in ("p50", "p99")),
        )
    return table


def _load() -> str:
    return f"{os.getloadavg()[0]:.1f}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.workers", description=__doc__)
    parser.add_argument(
        "--workers",
        type=lambda each: [int(count) for count in each.split(",")],
        default=[2],
        help="how many, separated by commas (2)",
    )
    parser.add_argument("--rounds", type=int, default=5, help="of every row and column (5)")
    parser.add_argument("--seconds", type=int, default=3, help="of each run (3)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
