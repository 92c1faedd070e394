"""``python -m benchmarks.sub_fleets TRACE``: what a fleet loses if it is cut into groups.

A fleet that is too large for one group of gateways is cut: whoever stands before it sends each conversation to one
group, by a rendezvous hash of its first blocks. The groups know nothing of each other: each decides for its own
engines. Here each group's part of the trace goes through ``kvgate replay`` on its part of the engines, and the parts
are put together again.

The trace is Mooncake's form (JSON lines with ``hash_ids``). Its times are scaled so that the whole fleet gets
``--speed`` requests a second for each engine; the parts keep them, and so are as uneven as the hash makes them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import xxhash
from rich.console import Console
from rich.table import Table

DEPTH = 3
"""Blocks (of 512 tokens) whose hashes choose the group: within 1,536 tokens conversations differ in Mooncake's traces,
and the turns of one do not."""


def group_of(request: Mapping[str, Any], groups: int) -> int:
    """Rendezvous hashing: a group more takes its part from each of the others, and moves nothing else."""
    first = ",".join(map(str, request["hash_ids"][:DEPTH]))
    return max(range(groups), key=lambda group: xxhash.xxh3_64_intdigest(f"{group}/{first}".encode()))


def scaled(requests: Sequence[dict[str, Any]], rate: float) -> list[dict[str, Any]]:
    """The same requests in the same order, ``rate`` a second on average. Times are milliseconds."""
    span = requests[-1]["timestamp"] - requests[0]["timestamp"]
    factor = len(requests) / rate * 1000 / span
    return [{**each, "timestamp": round(each["timestamp"] * factor)} for each in requests]


def replayed(requests: Sequence[Mapping[str, Any]], engines: int, machine: str, folder: Path) -> dict[str, float]:
    """The figures of one group."""
    trace, figures = folder / "part.jsonl", folder / "part.json"
    trace.write_text("".join(json.dumps(each) + "\n" for each in requests))
    command = [sys.executable, "-m", "gateway.cli", "replay", str(trace), "--policies", "default", "--seeds", "1"]
    command += ["--jobs", "1", "--endpoints", str(engines), "--machine", machine, "--json", str(figures)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    [cell] = json.loads(figures.read_text())["cells"]
    [found] = cell["summaries"]["default"]
    return dict(found["values"])


def main() -> int:
    options = _parser().parse_args()
    lines = options.trace.read_text().splitlines()[: options.first]
    requests = scaled([json.loads(line) for line in lines], options.speed * options.engines)
    table = Table("groups", "engines each", "fullest group, of the mean", "goodput %", "hits %", "TTFT mean s")
    with tempfile.TemporaryDirectory() as folder:
        for groups in options.groups:
            parts: list[list[Mapping[str, Any]]] = [[] for _ in range(groups)]
            for each in requests:
                parts[group_of(each, groups)].append(each)
            found = [replayed(part, options.engines // groups, options.machine, Path(folder)) for part in parts if part]
            counts, tokens = [len(part) for part in parts if part], [_tokens(part) for part in parts if part]
            table.add_row(
                str(groups),
                str(options.engines // groups),
                f"{max(tokens) * groups / sum(tokens):.2f}",
                f"{100 * _mean(found, 'goodput', counts):.1f}",
                f"{100 * _mean(found, 'hit_rate', tokens):.1f}",
                f"{_mean(found, 'ttft_mean', counts):.2f}",
            )
    title = f"{options.trace.stem}, {options.engines} x {options.machine}, {len(requests):,} requests"
    Console(width=100).print(f"{title}, {options.speed:g} a second for each engine", table, sep="\n")
    return 0


def _tokens(part: Sequence[Mapping[str, Any]]) -> int:
    return sum(each["input_length"] for each in part)


def _mean(found: Sequence[Mapping[str, float]], name: str, weights: Sequence[int]) -> float:
    return sum(each[name] * weight for each, weight in zip(found, weights, strict=True)) / sum(weights)


def _parser() -> argparse.ArgumentParser:
    def numbers(each: str) -> list[int]:
        return [int(count) for count in each.split(",")]

    parser = argparse.ArgumentParser(prog="python -m benchmarks.sub_fleets", description=__doc__)
    parser.add_argument("trace", type=Path, metavar="TRACE", help="JSON lines as Mooncake's")
    parser.add_argument("--engines", type=int, default=64, help="of the whole fleet (64)")
    parser.add_argument("--groups", type=numbers, default=[1, 2, 4, 8], help="how many, separated by commas (1,2,4,8)")
    parser.add_argument("--speed", type=float, default=0.45, help="requests a second for each engine (0.45)")
    parser.add_argument("--machine", default="70b-tp4", help="of all engines, as for kvgate replay (70b-tp4)")
    parser.add_argument("--first", type=int, help="use only the first N requests")
    return parser


if __name__ == "__main__":
    sys.exit(main())
