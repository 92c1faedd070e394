"""``python -m benchmarks.queue_cost``: what a queue costs a request in place, while nothing waits.

One gateway has the same mock engines as three models: two without a queue (what these differ by is the run's noise),
and one with. A client asks them in turn, some requests at a time, and reads the CPU clock of the whole gateway before
and after. So whatever else runs on the machine meets all three alike. Prompts are known ones of 2 KB.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import sys
import tempfile
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import quantiles

from benchmarks.data_path.builds import THIS
from benchmarks.data_path.engines import MODEL, ORDERS
from benchmarks.data_path.measure import held, sizes_of
from benchmarks.data_path.plan import COLUMNS
from benchmarks.data_path.prompts import Text, chat, encoder, render, text
from benchmarks.data_path.rows import Engines, Failed, Row, configuration, gateway, serving
from benchmarks.data_path.usage import cpu
from gateway.commands.processes import Processes, free_port, sigterm_raises

WITHOUT, AGAIN, WITH = MODELS = (MODEL, "again", "with")
"""Only the last one has a queue."""

BODIES = 64
"""Requests that differ in their last words."""

SLICE = 8
"""Requests of a model in a row: some milliseconds, so that many a slice is not disturbed by what else runs."""

WARM = 600
"""Requests of each model before: costs are learned, caches are full."""

STREAM = "events=2 step=1"
"""A stream with one event after its first: all that a request does in the queue, and few events."""


class Client:
    """Has ``connections`` to the gateway, with one request under way on each. Raises Failed for a wrong answer."""

    def __init__(self, port: int, connections: int) -> None:
        self._sockets = [socket.create_connection(("127.0.0.1", port), timeout=30) for _ in range(connections)]
        self._sent = 0

    def ask(self, requests: int, bodies: Sequence[bytes]) -> None:
        for _ in range(requests // len(self._sockets)):
            for connection in self._sockets:
                self._sent += 1
                connection.sendall(bodies[self._sent % len(bodies)])
            for connection in self._sockets:
                _read_answer(connection)

    def close(self) -> None:
        for connection in self._sockets:
            connection.close()


def _read_answer(connection: socket.socket) -> None:
    data = b""
    while b"\r\n\r\n" not in data:
        data += _receive(connection)
    head, _, body = data.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        raise Failed(data.decode(errors="replace"))
    lengths = [int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    while not (len(body) >= lengths[0] if lengths else body.endswith(b"0\r\n\r\n")):
        body += _receive(connection)


def _receive(connection: socket.socket) -> bytes:
    data = connection.recv(65536)
    if not data:
        raise Failed("a connection was closed within an answer")
    return data


def requests(made: Text, model: str, *, stream: bool) -> list[bytes]:
    """Whole ones, with their heads."""
    chance, words = random.Random(3), encoder(made)
    known = chat(made, sizes_of(made, 2), fresh=False).known
    found = []
    for _ in range(BODIES):
        messages = [*known, {"role": "user", "content": f"Go on with {chance.randrange(10**6)}."}]
        tokens = len(words.encode(render(messages, ask=True), add_special_tokens=False).ids)
        orders = f"tokens={tokens} {STREAM if stream else ''}".strip()
        body = {"model": model, "max_tokens": 400, "messages": messages, "stream": stream, ORDERS: orders}
        data = json.dumps(body).encode()
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: gateway\r\nContent-Type: application/json\r\n"
        found.append(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
    return found


def measure(
    row: Row, port: int, made: Text, rounds: int, connections: int, *, stream: bool
) -> Mapping[str, list[float]]:
    """By model, microseconds of CPU for each request, of each round."""
    bodies = {model: requests(made, model, stream=stream) for model in MODELS}
    took: dict[str, list[float]] = {model: [] for model in MODELS}
    client = Client(port, connections)
    try:
        for model in MODELS:
            client.ask(WARM, bodies[model])
        for number in range(rounds):
            first = number % len(MODELS)
            for model in (*MODELS[first:], *MODELS[:first]):
                before = cpu(row.pids)
                client.ask(SLICE, bodies[model])
                took[model].append((cpu(row.pids) - before) / SLICE * 1e6)
    finally:
        client.close()
    return took


def undisturbed(took: Sequence[float]) -> float:
    """The lower quartile: what is above may have been interrupted, and found its caches cold then."""
    return quantiles(took, n=4)[0]


def told(took: Mapping[str, Sequence[float]]) -> str:
    """What undisturbed slices of each model differ by, and where 95 of 100 such figures would be, by resampling."""
    chance, words = random.Random(1), [f"{undisturbed(took[WITHOUT]):.0f} us without"]
    for model in (AGAIN, WITH):
        found = []
        for _ in range(400):
            drawn = chance.choices(range(len(took[model])), k=len(took[model]))
            later, early = ([took[name][number] for number in drawn] for name in (model, WITHOUT))
            found.append(undisturbed(later) - undisturbed(early))
        bounds, more = quantiles(found, n=40), undisturbed(took[model]) - undisturbed(took[WITHOUT])
        words.append(f"{model} {more:+.1f} us ({bounds[0]:+.1f}..{bounds[-1]:+.1f})")
    return ", ".join(words)


def main() -> int:
    options = _parser().parse_args()
    made, port = text(), free_port()
    with (
        sigterm_raises(SystemExit(143)),
        tempfile.TemporaryDirectory() as folder,
        Processes(Path(folder)) as processes,
    ):
        engines = Engines(processes, held(made, [column for column in COLUMNS if column.name == "answer-2-known"]))
        config = configuration(port, engines.urls, made.folder)
        model = config["models"][0] | {"served_name": MODEL}
        config["models"] = [model | {"name": name} | ({"queue": {}} if name == WITH else {}) for name in MODELS]
        row = Row("gateway", f"http://127.0.0.1:{port}", gateway(processes, "gateway", config, THIS))
        serving(row, made)
        for repeat in range(options.repeats):
            for stream in (False, True):
                for connections in options.connections:
                    took = measure(row, port, made, options.rounds, connections, stream=stream)
                    kind = "streams" if stream else "answers"
                    print(f"{repeat + 1}: {kind}, {connections} at once: {told(took)}", flush=True)
        with urllib.request.urlopen(f"http://{config['listen']['admin']}/metrics", timeout=10) as said:
            waited = [
                line for line in said.read().decode().splitlines() if line.startswith("kvgate_queue_held_seconds_c")
            ]
    print(f"{options.rounds} rounds of {SLICE} requests of each; load {os.getloadavg()[0]:.1f}; waited: {waited or 0}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.queue_cost", description=__doc__)
    parser.add_argument("--rounds", type=int, default=600, help="of a slice of each model (600)")
    parser.add_argument("--repeats", type=int, default=2, help="of all (2)")
    parser.add_argument(
        "--connections",
        type=lambda each: [int(count) for count in each.split(",")],
        default=[1, 8],
        help="how many, separated by commas: divisors of 8 (1,8)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
