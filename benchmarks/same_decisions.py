"""``python -m benchmarks.same_decisions``: whether several deciders decide as one would.

The demo's traffic, on engines that were just started: through one process, through the workers of one host, and through
replicas behind HAProxy that share their loads through a Redis. The prompt tokens that the engines served from their
caches are counted by the engines themselves, and so is how evenly they worked.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table

from gateway.commands.demo.comparison import ENGINE_COUNTERS, build_tokenizer, start_engines, start_gateway
from gateway.commands.demo.drive import counted, drive, quantile
from gateway.commands.demo.scene import DEFAULT, Scene
from gateway.commands.processes import START_SECONDS, Processes, free_port, sigterm_raises, wait_for
from gateway.core.clock import SystemClock

Start = Callable[[Processes, Mapping[str, Any]], str]
"""Starts gateways of a configuration; returns the URL that clients use."""


@dataclass(frozen=True)
class Run:
    """``share``: of the prompt tokens, from caches. ``fullest``: prompt tokens of the engine that had most, of the
    mean. ``ttft``: p50 and p99, seconds. ``errors``: requests that failed."""

    share: float
    fullest: float
    ttft: tuple[float, float]
    errors: int


def one(processes: Processes, config: Mapping[str, Any]) -> str:
    return start_gateway(processes, config)


def workers(count: int) -> Start:
    def start(processes: Processes, config: Mapping[str, Any]) -> str:
        return start_gateway(processes, {**config, "listen": {**config["listen"], "workers": count}})

    return start


def replicas(count: int) -> Start:
    def start(processes: Processes, config: Mapping[str, Any]) -> str:
        store = free_port()
        processes.start("store", ["redis-server", "--port", str(store), "--save", "", "--appendonly", "no"])
        shared = {**config, "sharing": {"url": f"redis://127.0.0.1:{store}", "name": "same"}}
        urls = [start_gateway(processes, shared, f"replica-{number}") for number in range(count)]
        return balanced(processes, urls)

    return start


def balanced(processes: Processes, urls: Sequence[str]) -> str:
    """HAProxy in front of ``urls``: each request to the next one, which keeps no conversation at a replica."""
    port = free_port()
    servers = "\n".join(f"  server r{number} {url.removeprefix('http://')}" for number, url in enumerate(urls))
    path = processes.folder / "haproxy.cfg"
    path.write_text(
        "defaults\n  mode http\n  option http-no-delay\n"
        "  timeout connect 3s\n  timeout client 300s\n  timeout server 300s\n"
        f"listen kvgate\n  bind 127.0.0.1:{port}\n  balance roundrobin\n{servers}\n"
    )
    process = processes.start("haproxy", ["haproxy", "-db", "-f", str(path)])
    url = f"http://127.0.0.1:{port}"
    wait_for(lambda: _answers(url), "HAProxy to serve", process, START_SECONDS)
    return url


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", timeout=2.0, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


def play(scene: Scene, start: Start, tokenizer: Path, folder: Path) -> Run:
    clock = SystemClock()
    with Processes(folder) as processes:
        urls = start_engines(processes, scene.engines, scene.engine_flags(tokenizer))
        gateway = start(processes, DEFAULT.config(urls, tokenizer))
        samples = asyncio.run(drive(scene, gateway, clock, lambda sample: None))
        prompt, cached = asyncio.run(counted(urls, *ENGINE_COUNTERS))
        each = [asyncio.run(counted([url], ENGINE_COUNTERS[0]))[0] for url in urls]
    times = [sample.ttft for sample in samples if sample.ttft is not None]
    return Run(
        share=cached / prompt,
        fullest=max(each) / (sum(each) / len(each)),
        ttft=(quantile(times, 0.5), quantile(times, 0.99)),
        errors=sum(bool(sample.error) for sample in samples),
    )


def main() -> int:
    options = _parser().parse_args()
    ways: dict[str, Start] = {"one process": one}
    ways |= {f"{count} workers": workers(count) for count in options.workers}
    if shutil.which("haproxy") and shutil.which("redis-server"):
        ways |= {f"{count} replicas": replicas(count) for count in options.replicas}
    else:
        print("no replicas: haproxy and redis-server are not both installed", file=sys.stderr)
    runs: dict[str, list[Run]] = {name: [] for name in ways}
    with tempfile.TemporaryDirectory() as folder, sigterm_raises(SystemExit(143)):
        tokenizer = build_tokenizer(Path(folder) / "tokenizer")
        for number in range(options.rounds):
            for name, start in ways.items():
                print(f"round {number + 1}: {name}", file=sys.stderr)
                runs[name].append(play(Scene(), start, tokenizer, Path(folder)))
    table = Table("", "from caches", "fullest engine, of the mean", "TTFT p50 ms", "p99 ms", "errors")
    for name, own in runs.items():
        table.add_row(
            name,
            f"{median(run.share for run in own):.1%}",
            f"{median(run.fullest for run in own):.2f}",
            *(f"{1000 * median(run.ttft[at] for run in own):,.0f}" for at in (0, 1)),
            str(sum(run.errors for run in own)),
        )
    Console(width=100).print(table)
    return int(any(run.errors for own in runs.values() for run in own))


def _parser() -> argparse.ArgumentParser:
    def numbers(each: str) -> list[int]:
        return [int(count) for count in each.split(",")]

    parser = argparse.ArgumentParser(prog="python -m benchmarks.same_decisions", description=__doc__)
    parser.add_argument("--workers", type=numbers, default=[4], help="how many, separated by commas (4)")
    parser.add_argument("--replicas", type=numbers, default=[3], help="likewise (3)")
    parser.add_argument("--rounds", type=int, default=3, help="of all; the table has medians (3)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
