"""How late the gateway's event loop is while it tokenizes 20 fresh prompts of 100,000 tokens beside 200 streams.

Measured inside the gateway: a filter that keeps every endpoint starts a clock in its loop (``lag_filter``), installed
for this process alone, as any plugin is. Each gateway is measured ``RUNS`` times, and their median counts.

Exit code 1 where the target is met on docs/benchmarks.md, and is missed by more than twice what equal runs differ by.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import uvloop
from rich.console import Console

from benchmarks.data_path import page
from benchmarks.data_path.builds import add_options, chosen
from benchmarks.data_path.engines import MODEL, ORDERS
from benchmarks.data_path.judge import Verdict, lost, root_mean_square
from benchmarks.data_path.plan import LAG
from benchmarks.data_path.prompts import Text, chat, long_sizes, text
from benchmarks.data_path.rows import Engines, Failed, Row, configuration, gateway, serving
from benchmarks.data_path.show import targets
from benchmarks.data_path.usage import cpu
from benchmarks.kv_soak import head
from benchmarks.kv_table import Figure, show
from gateway.commands.processes import NotReady, Processes, free_port, sigterm_raises

STREAMS = 200
STEP = 50
"""Milliseconds between a stream's events: 4,000 events a second in all, a third of what the gateway can pass on."""

PROMPTS = 20
QUIET = 5.0
"""Seconds of streams alone, before the prompts come."""

RUNS = 3
"""Of each gateway, all gateways in turn."""

PATIENCE = 120.0
BESIDE = "the same while prompts are tokenized"

PLUGIN = "Metadata-Version: 2.1\nName: kvgate-lag\nVersion: 0\n"
ENTRY = "[kvgate.filters]\nlag = kvgate_lag:Lag\n"


class Reader(asyncio.Protocol):
    """A stream that is read and forgotten. ``bytes``: that came."""

    def __init__(self) -> None:
        self.bytes = 0
        self.lost = False

    def data_received(self, data: bytes) -> None:
        self.bytes += len(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True


def request(messages: object, orders: str, stream: bool, tokens: int = 1) -> bytes:
    body = json.dumps(
        {"model": MODEL, "max_tokens": 64, "stream": stream, "messages": messages, ORDERS: f"{orders} tokens={tokens}"}
    ).encode()
    return head(body, "connection: close").replace(b"/v1/completions", b"/v1/chat/completions") + body


async def ask(port: int, whole: bytes) -> bool:
    """Whether it is answered with a 200."""
    reading, writing = await asyncio.open_connection("127.0.0.1", port)
    writing.write(whole)
    answer = await asyncio.wait_for(reading.read(), PATIENCE)
    writing.close()
    return answer.startswith(b"HTTP/1.1 200")


def late(path: Path, begin: float, end: float) -> list[float]:
    """Milliseconds of every tick that was due in that time; those that a standstill swallowed count as well."""
    found = []
    for due, lag in struct.iter_unpack("dd", path.read_bytes()):
        if begin <= due <= end:
            found.append(lag * 1000)
    return sorted(found)


def at(values: list[float], share: float) -> float:
    return values[min(len(values) - 1, int(len(values) * share))]


async def measure(port: int, pid: int, ticks: Path, made: Text) -> list[Figure]:
    loop = asyncio.get_running_loop()
    chance = random.Random(4)
    lengths = long_sizes(made)
    prompts = []
    for _ in range(PROMPTS):
        asked = chat(made, lengths, fresh=False, seed=chance.getrandbits(30))
        messages = [*asked.known, {"role": "user", "content": made.words(chance, 64)}]
        prompts.append(request(messages, "", stream=False, tokens=asked.tokens))
    readers = []
    for number in range(STREAMS):
        transport, reader = await loop.create_connection(Reader, "127.0.0.1", port)
        message = [{"role": "user", "content": f"{number} {made.words(chance, 320)}"}]
        transport.write(request(message, f"events=100000 step={STEP}", stream=True))
        readers.append(reader)
        if number % 20 == 19:
            await asyncio.sleep(0.1)
    await asyncio.sleep(1)
    begun = [time.monotonic()]
    spent = [cpu([pid])]
    await asyncio.sleep(QUIET)
    begun.append(time.monotonic())
    spent.append(cpu([pid]))
    answers = await asyncio.gather(*(ask(port, whole) for whole in prompts))
    begun.append(time.monotonic())
    spent.append(cpu([pid]))
    await asyncio.sleep(1.5)  # until the clock has written down what it saw
    if not all(answers) or any(reader.lost for reader in readers):
        raise Failed(f"{answers.count(False)} prompts failed, {sum(reader.lost for reader in readers)} streams ended")
    alone, beside = late(ticks, *begun[:2]), late(ticks, *begun[1:])
    return [
        Figure("event-loop lag p99, streams alone", at(alone, 0.99), "ms"),
        Figure(BESIDE, at(beside, 0.99), "ms", LAG.pure),
        Figure("its median", at(beside, 0.5), "ms"),
        Figure("its maximum", beside[-1], "ms"),
        Figure("the prompts took", begun[2] - begun[1], "s"),
        Figure("the gateway's CPU, streams alone", (spent[1] - spent[0]) / (begun[1] - begun[0]) * 100, "% of a core"),
        Figure("the same meanwhile", (spent[2] - spent[1]) / (begun[2] - begun[1]) * 100, "% of a core"),
    ]


def configured(port: int, engines: Engines, made: Text, ticks: Path) -> dict[str, Any]:
    """The default profile, with the clock before its filters."""
    names = ("healthy", "role", "slo")
    return configuration(port, engines.urls, made.folder) | {
        "plugins": [
            *({"name": each, "type": each} for each in names),
            {"name": "cost", "type": "placement-cost"},
            {"name": "best", "type": "max-score"},
            {"name": "lag", "type": "lag", "parameters": {"path": str(ticks)}},
        ],
        "profiles": [
            {
                "name": "default",
                "filters": ["lag", *names],
                "scorers": [{"plugin": "cost", "weight": 1.0}],
                "picker": "best",
            }
        ],
        "handlers": [{"name": "default", "type": "single", "parameters": {"profile": "default"}}],
    }


def install(folder: Path) -> Path:
    """The clock as an installed plugin; returns what is to be on the gateway's path."""
    info = folder / "kvgate_lag-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(PLUGIN)
    (info / "entry_points.txt").write_text(ENTRY)
    shutil.copy(Path(__file__).with_name("lag_filter.py"), folder / "kvgate_lag.py")
    return folder


def judged(row: str, kind: str, found: Sequence[float]) -> Verdict:
    """Of equal runs' milliseconds; what they differ by is the noise."""
    noise = root_mean_square(one / other for one, other in pairwise(found))
    return Verdict(LAG, row, kind, None, statistics.median(found), noise)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.data_path.lag", description=__doc__)
    add_options(parser)
    parser.add_argument("--page", action="store_true", help="write the table of docs/benchmarks.md")
    options = parser.parse_args()
    builds, made = chosen(options), text()
    verdicts: list[Verdict] = []
    with (
        sigterm_raises(SystemExit(143)),
        tempfile.TemporaryDirectory() as name,
        Processes(Path(name)) as processes,
    ):
        plugin = install(Path(name) / "plugin")
        try:
            engines = Engines(processes, [])
            found: dict[str, list[float]] = {row: [] for row in builds}
            for number in range(RUNS):
                for row, build in builds.items():
                    port, ticks = free_port(), Path(name) / f"{row}-{number}"
                    config = configured(port, engines, made, ticks)
                    process = gateway(processes, row, config, build, {"PYTHONPATH": str(plugin)})
                    serving(Row(row, f"http://127.0.0.1:{port}", process), made)
                    figures = uvloop.run(measure(port, process.pid, ticks, made))
                    processes.stop([process])
                    show(
                        f"{row}: {PROMPTS} fresh prompts of 100,000 tokens beside {STREAMS} streams of "
                        f"{1000 // STEP} events/s",
                        figures,
                    )
                    found[row].append(next(figure.value for figure in figures if figure.name == BESIDE))
        except (Failed, NotReady) as failure:
            print(f"FAILED: {failure}", file=sys.stderr)
            return 1
    verdicts = [judged(row, builds[row].kind, lags) for row, lags in found.items()]
    targets(verdicts, Console(width=None if sys.stdout.isatty() else 240))
    missed = lost(verdicts, page.met())
    for verdict in missed:
        print(f"MISSED, met on the page: {verdict.target.name}, {verdict.kind}", file=sys.stderr)
    if options.page:
        page.put({"lag": page.targets([verdict for verdict in verdicts if verdict.row in page.CALLED])})
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
