"""Where a request's CPU goes: the gateway's own steps, by the clock of its thread, while ``wrk`` asks.

``python -m benchmarks.data_path.steps``. What the clocks take is measured in the same process and left out. Beside it,
in the same run, the same gateway without clocks: what its answer takes more or less than the sum is the remainder. What
no step has is uvloop's own, the system's for reading, and the other threads'.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.data_path import page
from benchmarks.data_path.builds import HERE, KVGATE, THIS
from benchmarks.data_path.judge import BY_NAME
from benchmarks.data_path.measure import WARM, Bench, held
from benchmarks.data_path.prompts import text
from benchmarks.data_path.rows import Engines, Failed, Row, configuration, gateway, serving
from benchmarks.data_path.steps_inside import HANDLED, LOOP, OTHERS
from gateway.commands.processes import START_SECONDS, NotReady, Processes, free_port, sigterm_raises, wait_for

ROUNDS, SECONDS = 3, 4
COLUMNS = ("answer-2-known", "stream-2-known", "answer-128-known", "long-known")
CLOCKED = "clocked"


@dataclass(frozen=True)
class Measured:
    """For each answer. ``steps``: of each how often it ran, and its microseconds. ``clocks``: of each kind how many
    there were, and the microseconds of one (own, around). ``without``: in each round, those of the gateway without
    clocks."""

    steps: Mapping[str, tuple[float, float]]
    clocks: Mapping[str, tuple[float, float, float]]
    without: Sequence[float]

    @property
    def all(self) -> float:
        return sum(spent for _, spent in self.steps.values())

    @property
    def subtracted(self) -> float:
        return sum(count * (own + around) for count, own, around in self.clocks.values())

    @property
    def remainder(self) -> float:
        return statistics.median(self.without) - self.all


def read(told: Mapping[str, Mapping[str, Sequence[float]]], without: Sequence[float]) -> Measured:
    """From what ``steps_inside`` has told."""
    answers = told["steps"][HANDLED][0]
    steps = {name: (times / answers, spent / answers * 1e6) for name, (times, spent) in told["steps"].items()}
    for name in (LOOP, OTHERS):
        steps[name] = 1.0, steps[name][1]
    clocks = {kind: (count / answers, own * 1e6, around * 1e6) for kind, (count, own, around) in told["clocks"].items()}
    return Measured(steps, clocks, without)


def measure(folder: Path, column: str) -> Measured:
    """Raises Failed, NotReady."""
    made, asked = text(), BY_NAME[column]
    out = folder / "steps.json"
    with Processes(folder) as processes:
        engines = Engines(processes, held(made, [asked]))
        rows = []
        for name in (KVGATE, CLOCKED):
            port = free_port()
            config = configuration(port, engines.urls, made.folder)
            if name == KVGATE:
                process = gateway(processes, name, config, THIS)
            else:
                path = folder / "clocked.json"
                path.write_text(json.dumps(config))
                command = [sys.executable, "-m", "benchmarks.data_path.steps_inside", str(out), str(path)]
                process = processes.start(name, command, cwd=HERE)
            rows.append(Row(name, f"http://127.0.0.1:{port}", process))
        for row in rows:
            serving(row, made)
        plain, clocked = rows
        bench = Bench(engines, rows, made, folder, SECONDS)
        without = []
        for number in range(ROUNDS):
            without.append(bench.one(number, plain, asked).cpu)
            out.unlink(missing_ok=True)
            timer = threading.Thread(target=_toggle, args=(process.pid,))
            timer.start()
            bench.one(number, clocked, asked)
            timer.join()
            wait_for(out.exists, "the steps' figures", process, START_SECONDS)
        return read(json.loads(out.read_text()), without)


def _toggle(pid: int) -> None:
    """Begin and end within a run of ``SECONDS``."""
    time.sleep(2 * WARM)
    os.kill(pid, signal.SIGUSR1)
    time.sleep(SECONDS - 4 * WARM)
    os.kill(pid, signal.SIGUSR1)


def table(columns: Mapping[str, Measured]) -> str:
    """By the first column's microseconds; the sum, and how it stands to the gateway without clocks, at its end."""
    every = list(columns.values())
    names = sorted(
        {name for each in every for name in each.steps}, key=lambda name: -every[0].steps.get(name, (0, 0))[1]
    )
    lines = [f"| step | {' | '.join(f'{name}, µs | times' for name in columns)} |"]
    lines.append("|---|" + "--:|--:|" * len(every))
    for name in names:
        cells = [each.steps.get(name, (0.0, 0.0)) for each in every]
        lines.append(f"| {name} | " + " | ".join(f"{spent:,.0f} | {times:.2f}" for times, spent in cells) + " |")
    for title, values in (
        ("**all of these**", [f"**{each.all:,.0f}**" for each in every]),
        ("the same gateway without clocks", [f"{statistics.median(each.without):,.0f}" for each in every]),
        ("... in single rounds", [f"{min(each.without):,.0f} to {max(each.without):,.0f}" for each in every]),
        ("remainder", [f"{each.remainder:+,.0f}" for each in every]),
        ("clocks, already subtracted", [f"{each.subtracted:,.0f}" for each in every]),
    ):
        lines.append(f"| {title} | " + " | ".join(f"{value} |" for value in values) + " |")
    return "\n".join(lines)


def clocks(columns: Mapping[str, Measured]) -> str:
    """What one clock was measured to take."""
    told = []
    for name, each in columns.items():
        kinds = ", ".join(
            f"{count:.1f} around a {kind} ({own:.2f} + {around:.2f} µs)"
            for kind, (count, own, around) in each.clocks.items()
        )
        told.append(f"{name}: {kinds}")
    return f"Clocks of an answer, and what one takes within its step and around it: {'; '.join(told)}."


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.data_path.steps", description=__doc__)
    parser.add_argument("--columns", type=lambda each: each.split(","), default=COLUMNS, help="of the data path's")
    parser.add_argument("--page", action="store_true", help="write the table of docs/benchmarks.md")
    options = parser.parse_args()
    columns: dict[str, Measured] = {}
    for column in options.columns:
        with sigterm_raises(SystemExit(143)), tempfile.TemporaryDirectory() as folder:
            try:
                columns[column] = measure(Path(folder), column)
            except (Failed, NotReady) as failure:
                print(f"FAILED: {failure}", file=sys.stderr)
                return 1
    shown = f"{table(columns)}\n\n{clocks(columns)}"
    print(shown)
    if options.page:
        page.put({"steps": shown})
    return 0


if __name__ == "__main__":
    sys.exit(main())
