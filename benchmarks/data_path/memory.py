"""What the gateway's memory does: over many requests, some of which fail or are given up, and under idle streams.

``make bench-memory`` asks a million times (ten minutes on two cores); ``--requests`` makes it fewer. Exit code 1 where
a target is not met.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import uvloop

from benchmarks.data_path.builds import HERE, Build
from benchmarks.data_path.lag import Reader, request
from benchmarks.data_path.prompts import Text, chat, encoder, render, sizes, text
from benchmarks.data_path.rows import Engines, Failed, Row, configuration, gateway, serving
from benchmarks.data_path.usage import cpu, resident
from benchmarks.kv_table import Figure, show
from gateway.commands.processes import NotReady, Processes, free_port, sigterm_raises

REQUESTS = 1_000_000
CLIENTS = 32
PROMPTS = 64
"""Of 2 KB, asked in turn: what the gateway remembers of prompts is bounded, and not what is measured here."""

WARM, WARM_REQUESTS = 0.1, 50_000
"""Of the requests, and at least so many: what is kept for each client, engine and kind of answer is there after that,
and what is kept for some seconds or of the last requests has its size."""

LOOKS = 20
GROWTH = 1.02
"""The most that memory may be at the end, of what it was when it was warm: an allocator's noise."""

IDLE = 5_000
IDLE_TARGET = 40.0
PATIENCE = 60.0

KINDS = {
    "answer": 50,
    "stream": 20,
    "engine-error": 10,
    "cut": 5,
    "given-up": 15,
}
"""Of a hundred requests: whole answers, streams of eight events, errors of engines (half of them the client's fault),
answers that break off, and clients that leave in the middle of a stream."""


def warm_at(requests: int) -> int | None:
    """After how many of the ``LOOKS`` memory is warm. None: not in the first half, so that nothing can be told."""
    looks = math.ceil(LOOKS * max(WARM, WARM_REQUESTS / requests))
    return looks if looks <= LOOKS // 2 else None


def remains(memory: Sequence[int], requests: int) -> list[Figure]:
    """``memory``: bytes before, at each look, and after all. Judged where it could become warm."""
    before, half, after = memory[0] / 1e6, memory[LOOKS // 2] / 1e6, memory[-1] / 1e6
    figures = [Figure("memory before", before, "MB")]
    most = None
    if (looks := warm_at(requests)) is not None:
        warm = max(memory[: looks + 1]) / 1e6
        most = GROWTH * warm
        figures.append(Figure(f"after {looks / LOOKS:.0%} of them", warm, "MB"))
    return [*figures, Figure("when half were through", half, "MB"), Figure("after all", after, "MB", most)]


class Load:
    """``CLIENTS`` connections' worth of requests. ``seen``: by what was asked and what came of it. ``look``: called
    ``LOOKS`` times on the way."""

    def __init__(self, port: int, made: Text, requests: int, look: Callable[[], None]) -> None:
        self._port = port
        self._left = requests
        self._chance = random.Random(4)
        self.seen: Counter[str] = Counter()
        self.done = 0
        self._every = max(1, requests // LOOKS)
        self._look = look
        self._whole = {kind: self._written(made, kind) for kind in KINDS}

    def _written(self, made: Text, kind: str) -> list[bytes]:
        orders = {"answer": "", "stream": "events=8 step=1", "cut": "cut", "given-up": "events=1000 step=10"}
        whole, words = [], encoder(made)
        for number in range(PROMPTS):
            asked = chat(made, sizes(2), fresh=False, seed=number)
            messages = [*asked.known, {"role": "user", "content": "Go on."}]
            tokens = len(words.encode(render(messages, ask=True), add_special_tokens=False).ids)
            told = orders.get(kind, f"fail={(400, 500)[number % 2]}")
            stream = kind in ("stream", "given-up") or (kind == "cut" and number % 2 == 0)
            whole.append(request(messages, told, stream=stream, tokens=tokens).replace(b"connection: close\r\n", b""))
        return whole

    async def run(self) -> None:
        await asyncio.gather(*(self._client() for _ in range(CLIENTS)))

    async def _client(self) -> None:
        kinds, weights = list(KINDS), list(KINDS.values())
        writing: asyncio.StreamWriter | None = None
        while self._left > 0:
            self._left -= 1
            kind = self._chance.choices(kinds, weights)[0]
            if writing is None:
                reading, writing = await asyncio.open_connection("127.0.0.1", self._port)
            writing.write(self._chance.choice(self._whole[kind]))
            try:
                outcome = await asyncio.wait_for(self._answer(reading, kind), PATIENCE)
            except (OSError, asyncio.IncompleteReadError):
                outcome = "broken"
            self.seen[f"{kind} {outcome}"] += 1
            self.done += 1
            if self.done % self._every == 0:
                self._look()
            if outcome in ("left", "broken"):
                writing.transport.abort()
                writing = None
        if writing is not None:
            writing.close()

    async def _answer(self, reading: asyncio.StreamReader, kind: str) -> str:
        """Read one answer; its status, ``left`` where we leave it."""
        head = await reading.readuntil(b"\r\n\r\n")
        status = head[9:12].decode()
        lowered = head.lower()
        if kind == "given-up" and status == "200":
            await reading.readuntil(b"\n\n")
            return "left"
        if b"chunked" in lowered:
            while size := int(await reading.readuntil(b"\r\n"), 16):
                await reading.readexactly(size + 2)
            await reading.readexactly(2)
        else:
            at = lowered.index(b"content-length:") + 15
            await reading.readexactly(int(lowered[at : lowered.index(b"\r\n", at)]))
        return status


async def soak(port: int, pid: int, made: Text, requests: int) -> list[Figure]:
    memory = [resident([pid])]

    def look() -> None:
        memory.append(resident([pid]))
        print(f"{load.done:,} requests, {memory[-1] / 1e6:.1f} MB", file=sys.stderr)

    load = Load(port, made, requests, look)
    began, spent = time.monotonic(), cpu([pid])
    await load.run()
    seconds = time.monotonic() - began
    await asyncio.sleep(2)
    memory.append(resident([pid]))
    wrong = {name: count for name, count in load.seen.items() if name not in EXPECTED}
    print(f"{', '.join(f'{count:,} {name}' for name, count in sorted(load.seen.items()))}")
    return [
        Figure("requests", load.done, ""),
        Figure("of these answered otherwise than was to be", sum(wrong.values()), "", 0),
        Figure("a second", load.done / seconds, "requests/s"),
        Figure("CPU of a request", (cpu([pid]) - spent) / load.done * 1e6, "us"),
        *remains(memory, requests),
    ]


EXPECTED = frozenset(
    {"answer 200", "stream 200", "given-up left", "cut 502", "cut 200", "cut broken"}
    | {f"engine-error {status}" for status in (400, 500)}
)
"""A stream that breaks off after its first event is a 200 that ends with an error event."""


async def idle(port: int, pid: int, made: Text, count: int) -> list[Figure]:
    """Streams that say nothing after their first event, each with a prompt of its own."""
    loop = asyncio.get_running_loop()
    chance = random.Random(4)
    before = resident([pid])
    connections = []
    words = encoder(made)
    for number in range(count):
        transport, reader = await loop.create_connection(Reader, "127.0.0.1", port)
        messages = [{"role": "system", "content": made.words(chance, 1856)}, {"role": "user", "content": str(number)}]
        tokens = len(words.encode(render(messages, ask=True), add_special_tokens=False).ids)
        transport.write(request(messages, "hold", stream=True, tokens=tokens))
        connections.append((transport, reader))
        if number % 50 == 49:
            await asyncio.sleep(0.05)
    deadline = time.monotonic() + PATIENCE
    while not all(reader.bytes for _, reader in connections):
        if time.monotonic() > deadline:
            raise Failed(f"{sum(not reader.bytes for _, reader in connections)} streams have not begun")
        await asyncio.sleep(0.1)
    await asyncio.sleep(2)
    during = resident([pid])
    for transport, _ in connections:
        transport.abort()
    await asyncio.sleep(5)
    return [
        Figure("idle streams", count, ""),
        Figure("memory of one", (during - before) / count / 1e3, "kB", IDLE_TARGET),
        Figure("memory before", before / 1e6, "MB"),
        Figure("with them", during / 1e6, "MB"),
        Figure("when they have gone", resident([pid]) / 1e6, "MB"),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.data_path.memory", description=__doc__)
    parser.add_argument("--requests", type=int, default=REQUESTS, help=f"(default {REQUESTS:,}); 0 for none")
    parser.add_argument("--streams", type=int, default=IDLE, help=f"idle ones (default {IDLE:,}); 0 for none")
    parser.add_argument("--tree", type=Path, default=HERE, help="the checkout whose gateway is measured")
    options = parser.parse_args()
    made = text()
    # Both ends of each stream are the gateway's, and it inherits the limit.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    figures: list[Figure] = []
    with (
        sigterm_raises(SystemExit(143)),
        tempfile.TemporaryDirectory() as folder,
        Processes(Path(folder)) as processes,
    ):
        try:
            for wanted, measure in ((options.streams, idle), (options.requests, soak)):
                if not wanted:
                    continue
                engines = Engines(processes, [])
                port = free_port()
                name = f"gateway-{measure.__name__}"
                config = configuration(port, engines.urls, made.folder)
                process = gateway(processes, name, config, Build(Path(sys.executable), options.tree.resolve()))
                serving(Row(name, f"http://127.0.0.1:{port}", process), made)
                figures += uvloop.run(measure(port, process.pid, made, wanted))
                processes.stop([process])
        except (Failed, NotReady) as failure:
            print(f"FAILED: {failure}", file=sys.stderr)
            return 1
    show("the gateway's memory", figures)
    if options.requests and warm_at(options.requests) is None:
        print(f"whether memory grows cannot be told from fewer than {2 * WARM_REQUESTS:,} requests")
    return int(any(figure.met == "NOT MET" for figure in figures))


if __name__ == "__main__":
    sys.exit(main())
