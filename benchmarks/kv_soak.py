"""What events at full rate do to the streams that a gateway relays, and to its memory: real processes, real sockets.

A simulated engine streams 200 answers through ``kvgate serve``, beside a few requests a second with long prompts, each
of which is matched, placed and settled; then, for as long again, a publisher offers 100,000 blocks a second of events,
ten times in all what the index may remember, and says once, when that is full, that its cache was emptied.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import re
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

import httpx

from benchmarks.data_path.usage import cpu, resident
from benchmarks.kv_table import Figure, show
from gateway.commands.demo.comparison import start_engines
from gateway.commands.processes import Process, Processes, free_port

STREAMS = 200
RATE = 100_000
STEP = 0.1
"""Seconds between two tokens of a stream: 2,000 events a second in all, which leaves two cores air to breathe."""

PATIENCE = 15.0
LIMITS = 10
"""How often the index's limit is offered."""

ASKED = 4
"""Requests a second beside the streams."""
CONVERSATIONS = 20
PROMPT = 2_000
"""Tokens, all but the last of them those of another request of the same conversation."""
IDS = 250
"""That the simulated engine takes."""


class Reader(asyncio.Protocol):
    """One stream: when its chunks came. The gaps between them, in seconds, of each phase."""

    def __init__(self, body: bytes, gaps: list[float]) -> None:
        self._body = body
        self.gaps = gaps
        self._last: float | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(head(self._body) + self._body)

    def data_received(self, data: bytes) -> None:
        now = perf_counter()
        if self._last is not None:
            self.gaps.append(now - self._last)
        self._last = now


class Asking:
    """Requests beside the streams, until it is cancelled. ``answered``: with a 200."""

    def __init__(self, port: int) -> None:
        self.answered = 0
        self._port = port
        chance = random.Random(4)
        self._prompts = [chance.choices(range(IDS), k=PROMPT) for _ in range(CONVERSATIONS)]

    async def run(self) -> None:
        await asyncio.gather(*(self._one_a_second(first) for first in range(ASKED)))

    async def _one_a_second(self, first: int) -> None:
        for number in itertools.count(first, ASKED):
            began = perf_counter()
            # Written and read by hand: a client's own work would be in the gaps that are measured in this process.
            prompt = [*self._prompts[number % CONVERSATIONS][:-1], number % IDS]
            body = json.dumps({"model": "sim", "prompt": prompt, "max_tokens": 1}).encode()
            reading, writing = await asyncio.open_connection("127.0.0.1", self._port)
            writing.write(head(body, "connection: close") + body)
            answer = await reading.read()
            self.answered += answer.startswith(b"HTTP/1.1 200")
            writing.close()
            await asyncio.sleep(max(0.0, began + 1 - perf_counter()))


def head(body: bytes, *more: str) -> bytes:
    lines = ("POST /v1/completions HTTP/1.1", "host: x", "content-type: application/json", *more)
    return "\r\n".join((*lines, f"content-length: {len(body)}", "", "")).encode()


def megabytes(process: Process) -> float:
    return resident([process.pid]) / 1e6


def ninety_nine(gaps: list[float]) -> float:
    """Milliseconds."""
    return sorted(gaps)[len(gaps) * 99 // 100] * 1000


async def soak(processes: Processes, seconds: float) -> list[Figure]:
    limit = int(RATE * seconds / LIMITS)
    (engine,) = start_engines(
        processes,
        1,
        [f"--step-seconds={STEP}", "--answer-tokens=900000", "--num-blocks=400000", "--max-model-len=1000000"],
    )
    publisher = processes.start("publisher", [sys.executable, "-m", "benchmarks.kv_publish"], talks=True)
    address = json.loads(publisher.line())["address"]
    port, admin = free_port(), free_port()
    config: dict[str, Any] = {
        "listen": {"port": port, "admin": f"127.0.0.1:{admin}", "lame_duck": 0},
        "models": [
            {
                "name": "sim",
                "endpoints": [{"url": engine, "kv_events": {"endpoint": address}}],
                "kv_cache": {"max_blocks": limit},
            }
        ],
        "log": {"format": "json", "requests": False},
    }
    path = processes.folder / "plugins.yaml"
    path.write_text(json.dumps(config))
    gateway = processes.start("gateway", [sys.executable, "-m", "gateway.cli", "serve", str(path)])
    loop = asyncio.get_running_loop()
    async with httpx.AsyncClient(trust_env=False) as client:
        deadline = perf_counter() + PATIENCE
        while True:
            try:
                if (await client.get(f"http://127.0.0.1:{port}/readyz")).status_code == 200:
                    break
            except httpx.TransportError:
                pass
            if perf_counter() > deadline:
                raise SystemExit(f"the gateway did not start: {gateway.tail()}")
            await asyncio.sleep(0.1)

        async def applied() -> float:
            text = (await client.get(f"http://127.0.0.1:{admin}/metrics")).text
            found = re.search(r'^kvgate_kv_events_total\{[^}]*kind="stored"[^}]*\} (\S+)', text, re.M)
            return float(found[1]) if found else 0.0

        body = json.dumps({"model": "sim", "prompt": "go on", "max_tokens": 900_000, "stream": True}).encode()
        readers: list[Reader] = []
        for _ in range(STREAMS):
            _, reader = await loop.create_connection(lambda: Reader(body, []), "127.0.0.1", port)
            readers.append(reader)
        asking = Asking(port)
        beside = asyncio.create_task(asking.run())
        await asyncio.sleep(2)

        def listen() -> list[float]:
            heard: list[float] = []
            for reader in readers:
                reader.gaps = heard
            return heard

        before = megabytes(gateway)
        spent = [cpu([gateway.pid])]
        heard = listen()
        await asyncio.sleep(seconds)
        quiet, asked = ninety_nine(heard), asking.answered
        spent.append(cpu([gateway.pid]))
        publisher.write_line(json.dumps({"rate": RATE, "seconds": seconds}))
        memory = []
        heard = listen()
        for _ in range(LIMITS):
            await asyncio.sleep(seconds / LIMITS)
            memory.append(megabytes(gateway))
        noisy, asked = ninety_nine(heard), asking.answered - asked
        listen()
        spent.append(cpu([gateway.pid]))
        sent = json.loads(await asyncio.to_thread(publisher.line, PATIENCE + seconds))["sent"]
        taken = await applied()
        waited = perf_counter()
        while taken < sent and perf_counter() - waited < PATIENCE:
            await asyncio.sleep(0.2)
            taken = await applied()
        late = perf_counter() - waited
        if beside.done():
            beside.result()
        beside.cancel()
    return [
        Figure("gap between a stream's chunks, p99, no events", quiet, "ms"),
        Figure("the same under events", noisy, "ms"),
        Figure("it grows by", noisy - quiet, "ms", 5),
        Figure("the gateway's CPU, no events", (spent[1] - spent[0]) / seconds * 100, "% of a core"),
        Figure("the same under events", (spent[2] - spent[1]) / seconds * 100, "% of a core"),
        Figure("requests beside the streams, answered", asked / seconds, "requests/s", ASKED / 2, most=False),
        Figure("blocks offered", sent / seconds, "blocks/s"),
        Figure("of these applied", taken / sent * 100, "%", 100, most=False),
        Figure("late by", late, "s"),
        Figure("memory before", before, "MB"),
        Figure("when twice the index's limit had been offered", memory[1], "MB"),
        Figure("when ten times as much had been", memory[-1], "MB", 1.15 * memory[1]),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1 / 3, help="under events, and as long without (default 1/3)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, Processes(Path(folder)) as processes:
        figures = asyncio.run(soak(processes, options.minutes * 60))
    show(f"{RATE:,} blocks/s of events beside {STREAMS} streams, {options.minutes * 60:.0f} s", figures)


if __name__ == "__main__":
    main()
