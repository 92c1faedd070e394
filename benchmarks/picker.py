"""``python -m benchmarks.picker``: what a request costs where Envoy carries it and kvgate picks the endpoint, beside
kvgate as a proxy.

The mock engines, prompts and ``wrk`` are those of ``benchmarks.data_path``, and so is how CPU is counted: for each
answer, of all threads. A row of Envoy has two figures, Envoy's own and the picker's. Rows take turns in each round.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.data_path.builds import KVGATE, THIS
from benchmarks.data_path.measure import Bench, Sample, held
from benchmarks.data_path.plan import COLUMNS
from benchmarks.data_path.prompts import Text, text
from benchmarks.data_path.rows import Engines, Row, configuration, gateway, serving
from benchmarks.data_path.usage import cpu, tree
from gateway.commands.envoy.document import document
from gateway.commands.envoy.wanted import Address, Mode, Wanted
from gateway.commands.processes import START_SECONDS, Process, Processes, free_port, offline, sigterm_raises, wait_for
from gateway.config.load import load

NAMES = ("answer-2-known", "stream-2-known", "answer-128-known")
ALONE = "Envoy alone"
"""In turn, and nobody is asked: what is Envoy's own."""


@dataclass
class Asking(Row):
    """Envoy; ``picker``: who is asked."""

    picker: Sequence[int] = ()


class Apart(Bench):
    """Counts the picker's CPU apart, in ``of_picker``: microseconds for each answer."""

    of_picker: dict[tuple[str, str], list[float]]
    _seen: list[float]

    def one(self, number: int, row: Row, column: Any) -> Sample:
        self._seen = []
        sample = super().one(number, row, column)
        early, late = self._seen[-2:]
        self.of_picker.setdefault((row.name, column.name), []).append((late - early) / sample.answers * 1e6)
        return sample

    def _look(self, row: Row, drivers: Any) -> tuple[float, float, float, float]:
        self._seen.append(cpu(row.picker) if isinstance(row, Asking) else 0.0)
        return super()._look(row, drivers)


def main() -> int:
    options = _parser().parse_args()
    columns = [column for column in COLUMNS if column.name in options.columns]
    made, console, samples = text(), Console(width=110), list[Sample]()
    with (
        sigterm_raises(SystemExit(143)),
        tempfile.TemporaryDirectory() as folder,
        Processes(Path(folder)) as processes,
    ):
        engines = Engines(processes, held(made, columns))
        port = free_port()
        proxy = gateway(processes, KVGATE, configuration(port, engines.urls, made.folder), THIS)
        rows = [Row(KVGATE, f"http://127.0.0.1:{port}", proxy)]
        rows.append(_through_envoy(processes, options.envoy, engines, made, None))
        rows += [_through_envoy(processes, options.envoy, engines, made, Mode(mode)) for mode in options.modes]
        for row in rows:
            serving(row, made)
        bench = Apart(engines, rows, made, Path(folder), options.seconds)
        bench.of_picker = {}
        for number in range(options.rounds):
            for column in columns:
                # Each round begins with another row, so that nobody always follows the same one.
                for row in rows[number % len(rows) :] + rows[: number % len(rows)]:
                    samples.append(bench.one(number, row, column))
    load_now = " ".join(f"{each:.1f}" for each in os.getloadavg())
    console.print(f"{os.cpu_count()} cores, {options.rounds} rounds of {options.seconds} s, medians; load {load_now}")
    for column in columns:
        console.print(_table(column.name, rows, samples, bench))
    return 0


def _through_envoy(processes: Processes, envoy: Path, engines: Engines, made: Text, mode: Mode | None) -> Asking:
    """``mode``: None: nobody is asked."""
    name = ALONE if mode is None else f"kvgate-epp, {mode}"
    listen, admin, asked = (Address("127.0.0.1", free_port()) for _ in range(3))
    settings = configuration(listen.port, engines.urls, made.folder) | {"epp": {"listen": str(asked), "health": ""}}
    path = processes.folder / f"{name.replace(' ', '')}.json"
    path.write_text(json.dumps(settings))
    made_of_it = document(load(path, {}), Wanted(listen, admin, (asked,), mode or Mode.ENDS))
    picker: list[int] = []
    if mode is None:
        made_of_it["static_resources"]["clusters"].pop()
        http = made_of_it["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
        del http["http_filters"][0]
    else:
        command = THIS.command("epp", str(path))
        process = processes.start(f"{name}-picker", command, env=offline(os.environ), cwd=THIS.home)
        wait_for(lambda: _listens(process), "the picker to be ready", process, START_SECONDS)
        picker = tree(process.pid)
    file = path.with_suffix(".envoy.json")
    file.write_text(json.dumps(made_of_it))
    options = ["--concurrency", "1", "--disable-hot-restart", "--log-level", "error"]
    running = processes.start(name, [str(envoy), "-c", str(file), *options])
    return Asking(name, f"http://{listen}", running, picker=picker)


def _listens(process: Process) -> bool:
    """All engines are found. Envoy then finds it healthy within a second, which is less than ``serving`` takes."""
    return "4 of 4 endpoints usable" in process.log.read_text()


def _table(name: str, rows: Sequence[Row], samples: Sequence[Sample], bench: Apart) -> Table:
    table = Table(
        "row", "Envoy, or the proxy", "picker", "together", "p50 ms", title=f"{name}: µs of CPU for each answer"
    )
    for row in rows:
        of_row = [sample for sample in samples if (sample.row, sample.column) == (row.name, name)]
        carried, picked = median(sample.cpu for sample in of_row), median(bench.of_picker[row.name, name])
        cells = (f"{carried:,.0f}", f"{picked:,.0f}", f"{carried + picked:,.0f}")
        table.add_row(row.name, *cells, f"{median(sample.p50 for sample in of_row):.2f}")
    return table


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.picker", description=__doc__)
    parser.add_argument("--envoy", type=Path, required=True, help="the program")
    parser.add_argument("--modes", type=lambda each: each.split(","), default=["ends", "full"], help="ends,full,...")
    parser.add_argument("--columns", type=lambda each: each.split(","), default=NAMES, help=",".join(NAMES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=2, help="of each run")
    return parser


if __name__ == "__main__":
    sys.exit(main())
