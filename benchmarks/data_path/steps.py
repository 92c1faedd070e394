"""Where a request's CPU goes: the gateway's own steps, by the clock of its thread, while ``wrk`` asks.

``python -m benchmarks.data_path.steps``. What no step has is uvloop's own, the system's for reading, aiohttp's between
requests, and the log's thread.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

from benchmarks.data_path.builds import HERE, KVGATE
from benchmarks.data_path.judge import BY_NAME
from benchmarks.data_path.measure import WARM, Bench, held
from benchmarks.data_path.prompts import text
from benchmarks.data_path.rows import Engines, Failed, Row, configuration, serving
from benchmarks.data_path.usage import tree
from gateway.commands.processes import START_SECONDS, NotReady, Processes, free_port, sigterm_raises, wait_for

SECONDS = 8
COLUMNS = ("answer-2-known", "stream-2-known")
HANDLED = "the handler, between its steps"
"""The step that each request has once."""

REST = "event loop and system"


def measure(folder: Path, column: str) -> dict[str, tuple[float, float]]:
    """Of each step: times for each answer, and microseconds. Raises Failed, NotReady."""
    made, asked = text(), BY_NAME[column]
    out, port = folder / "steps.json", free_port()
    with Processes(folder) as processes:
        engines = Engines(processes, held(made, [asked]))
        path = folder / "gateway.json"
        path.write_text(json.dumps(configuration(port, engines.urls, made.folder)))
        command = [sys.executable, "-m", "benchmarks.data_path.steps_inside", str(out), str(path)]
        process = processes.start(KVGATE, command, cwd=HERE)
        row = Row(KVGATE, f"http://127.0.0.1:{port}", process)
        serving(row, made)
        row.pids = tree(process.pid)
        bench = Bench(engines, [row], made, folder, SECONDS)

        def within() -> None:
            time.sleep(2 * WARM)
            process.child.send_signal(signal.SIGUSR1)
            time.sleep(SECONDS - 4 * WARM)
            process.child.send_signal(signal.SIGUSR1)

        timer = threading.Thread(target=within)
        timer.start()
        list(bench.run([asked], 1, 0))
        timer.join()
        wait_for(out.exists, "the steps' figures", process, START_SECONDS)
        told = json.loads(out.read_text())
    answers = told["steps"][HANDLED][0]
    found = {name: (times / answers, spent / answers * 1e6) for name, (times, spent) in told["steps"].items()}
    rest = told["seconds"] / answers * 1e6 - sum(spent for _, spent in found.values())
    return found | {REST: (1.0, rest)}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.data_path.steps", description=__doc__)
    parser.add_argument("--columns", type=lambda each: each.split(","), default=COLUMNS, help="of the data path's")
    options = parser.parse_args()
    columns: dict[str, dict[str, tuple[float, float]]] = {}
    for column in options.columns:
        with sigterm_raises(SystemExit(143)), tempfile.TemporaryDirectory() as folder:
            try:
                columns[column] = measure(Path(folder), column)
            except (Failed, NotReady) as failure:
                print(f"FAILED: {failure}", file=sys.stderr)
                return 1
    first = columns[options.columns[0]]
    names = sorted({name for steps in columns.values() for name in steps}, key=lambda name: -first.get(name, (0, 0))[1])
    print(f"| step | {' | '.join(f'{column}, µs | times' for column in columns)} |")
    print("|---|" + "--:|--:|" * len(columns))
    for name in names:
        cells = [steps.get(name, (0.0, 0.0)) for steps in columns.values()]
        print(f"| {name} | " + " | ".join(f"{spent:,.0f} | {times:.2f}" for times, spent in cells) + " |")
    sums = [sum(spent for _, spent in steps.values()) for steps in columns.values()]
    print("| all | " + " | ".join(f"{each:,.0f} |" for each in sums) + " |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
