"""``python -m benchmarks.data_path``: the gateway beside the Rust routers, a plain proxy and the floor.

Exit code 1 where a row gave a wrong answer (a fast error is no figure), or where the gateway misses a target that is
met on docs/benchmarks.md, by more than twice what two equal rows of the run differ by.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from fnmatch import fnmatch
from pathlib import Path

from rich.console import Console

from benchmarks.data_path import page
from benchmarks.data_path import rows as rows_
from benchmarks.data_path.builds import add_options, chosen
from benchmarks.data_path.judge import Results, lost, verdicts
from benchmarks.data_path.measure import Bench, Sample, held
from benchmarks.data_path.peers import PEERS
from benchmarks.data_path.plan import COLUMNS
from benchmarks.data_path.prompts import text
from benchmarks.data_path.rows import AGAIN, Engines, Failed
from benchmarks.data_path.show import draw, machine, tables, targets, told
from gateway.commands.processes import NotReady, Processes, sigterm_raises

QUICK_ROWS = ("kvgate", AGAIN, "floor", "sglang-router-cache", "smg-cache")
QUICK_COLUMNS = ("answer-2-known", "stream-2-known")


def main() -> int:
    options = _parser().parse_args()
    builds = chosen(options)
    every = rows_.names(builds)
    wanted = _chosen(options.rows or ((*QUICK_ROWS, *builds) if options.quick else every), every)
    all_columns = [column.name for column in COLUMNS]
    columns = _chosen(options.columns or (QUICK_COLUMNS if options.quick else all_columns), all_columns)
    rounds = options.rounds or (2 if options.quick else 3)
    console = Console(width=None if sys.stdout.isatty() else 240)
    began = machine()
    samples: list[Sample] = []
    failed = False
    asked = [column for column in COLUMNS if column.name in columns]
    made = text()
    for peer in PEERS:
        if any(name.startswith(peer.name) for name in wanted):
            try:
                peer.install()
            except (OSError, subprocess.SubprocessError) as error:
                raise SystemExit(f"{peer.name} cannot be installed: {error}") from error
    with (
        sigterm_raises(SystemExit(143)),
        tempfile.TemporaryDirectory() as folder,
        Processes(Path(folder)) as processes,
    ):
        try:
            engines = Engines(processes, held(made, asked))
            running = rows_.start(processes, wanted, engines, made, builds)
            bench = Bench(engines, running, made, Path(folder), options.seconds)
            for sample in bench.run(asked, rounds, 0 if options.quick else 2):
                samples.append(sample)
                if len(samples) == 1 or sample.column != samples[-2].column:
                    print(f"round {sample.round + 1}: {sample.column}", file=sys.stderr)
        except (Failed, NotReady, OSError, subprocess.SubprocessError) as failure:
            print(f"FAILED: {failure}", file=sys.stderr)
            failed = True
            if not samples:
                return 1
    results = Results(samples)
    peers = [name for name in rows_.cache_aware() if name in wanted]
    measured = {name: build for name, build in builds.items() if name in wanted}
    judged = verdicts(results, peers, {name: build.kind for name, build in measured.items()})
    missed = lost(judged, page.met())
    versions = {name: build.version for name, build in measured.items()}
    console.print(f"\n{machine()}; at its begin: {began}; {rounds} rounds of {options.seconds} s")
    tables(results, peers, console)
    for line in told(results, versions):
        console.print(line)
    targets(judged, console)
    for verdict in missed:
        print(f"MISSED, met on the page: {verdict.target.name}, {verdict.kind}", file=sys.stderr)
    if options.out is not None:
        _write(options.out, results, versions, [began, machine()])
    if options.page and not failed:
        page.write(results, judged, peers, versions)
    return int(failed or bool(missed))


def _write(out: Path, results: Results, versions: Mapping[str, str], loads: list[str]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    figures = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": loads,
        "builds": versions,
        "samples": [asdict(sample) for sample in results.samples],
    }
    (out / "data-path.json").write_text(json.dumps(figures, indent=1) + "\n")
    draw(results, list(versions), out / "data-path.png")
    print(f"figures and chart are in {out}")


def _chosen(patterns: list[str] | tuple[str, ...], every: list[str]) -> list[str]:
    """Those of ``every`` that a pattern means, in their order. Ends the program where one means none."""
    for pattern in patterns:
        if not any(fnmatch(name, pattern) for name in every):
            raise SystemExit(f"{pattern}: there is none of that name; there are {', '.join(every)}")
    return [name for name in every if any(fnmatch(name, pattern) for pattern in patterns)]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.data_path", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two rounds of a few rows and columns: a minute")
    parser.add_argument("--rows", type=lambda each: each.split(","), help="names or patterns, separated by commas")
    parser.add_argument("--columns", type=lambda each: each.split(","), help="likewise")
    parser.add_argument("--rounds", type=int, help="of every column (3; two more where a target hangs on it)")
    parser.add_argument("--seconds", type=int, default=2, help="of each run (default 2)")
    add_options(parser)
    parser.add_argument("--out", type=Path, help="a folder for the figures as JSON, and the chart")
    parser.add_argument("--page", action="store_true", help="write the tables of docs/benchmarks.md and the README")
    return parser


if __name__ == "__main__":
    sys.exit(main())
