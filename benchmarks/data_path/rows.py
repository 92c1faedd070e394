"""What is compared: each row is a proxy in front of the same mock engines, started as its users start it."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.data_path.builds import HERE, KVGATE, Build
from benchmarks.data_path.engines import MODEL, ORDERS
from benchmarks.data_path.peers import PEERS, Peer
from benchmarks.data_path.prompts import Text, encoder, render
from benchmarks.data_path.usage import tree
from gateway.commands.processes import START_SECONDS, Process, Processes, free_port, offline, wait_for

ENGINES = 4

DIRECT = "direct"
FLOOR, PLAIN = "floor", "aiohttp"
AGAIN = f"{KVGATE}-again"
"""the same as ``KVGATE``, in a process of its own. What these two rows differ by is a run's noise."""

ESTIMATED = "-untokenized"
"""The end of the name of a gateway's row without a tokenizer: it estimates prompts from their bytes."""

POLICIES = {"cache": "cache_aware", "turns": "round_robin"}
"""Each peer's two rows, by the end of their names."""

GREETING = [{"role": "user", "content": "Hello"}]
STEADY = 8
"""Answers in a row that say that a proxy has found its engines: some routers answer before they know them all."""


class Failed(Exception):
    """An answer was wrong, or did not come."""


@dataclass
class Row:
    """A proxy that runs. ``pids``: of its processes; those of ``direct`` are the engines'. ``beside``: further proxies
    that know nothing of it, each with its part of the connections."""

    name: str
    url: str
    process: Process | None = None
    pids: Sequence[int] = field(default_factory=tuple)
    beside: Sequence[Row] = ()


class Engines:
    """The mock engines, and who publishes their events. ``known``: the ids of prompts that each of them holds."""

    def __init__(self, processes: Processes, known: Sequence[Sequence[int]]) -> None:
        publisher = _ours(processes, "events", str(ENGINES))
        publisher.write_line(json.dumps(known))
        addresses = json.loads(publisher.line())
        process = _ours(processes, "engines", *map(",".join, addresses))
        said = json.loads(process.line())
        self.urls: list[str] = said["urls"]
        self.pids = tree(process.pid)
        self._counts: str = said["counts"]

    def counts(self) -> dict[str, int]:
        found: dict[str, int] = ask(self._counts)
        return found


def names(builds: Iterable[str]) -> list[str]:
    """Every row, in the order of the table."""
    ours = []
    for name in builds:
        ours += [name, *([AGAIN] if name == KVGATE else ()), name + ESTIMATED]
    return [*ours, FLOOR, PLAIN, *(f"{peer.name}-{end}" for peer in PEERS for end in POLICIES)]


def cache_aware() -> list[str]:
    return [f"{peer.name}-cache" for peer in PEERS]


def start(
    processes: Processes, wanted: Sequence[str], engines: Engines, text: Text, builds: Mapping[str, Build]
) -> list[Row]:
    """Start the rows, side by side, and wait until each serves. Raises NotReady."""
    rows = []
    for name in wanted:
        port = free_port()
        owner = KVGATE if name == AGAIN else name.removesuffix(ESTIMATED)
        if owner in builds:
            tokenizer = None if name.endswith(ESTIMATED) else text.folder
            process = gateway(processes, name, configuration(port, engines.urls, tokenizer), builds[owner])
        elif name in (FLOOR, PLAIN):
            module = f"benchmarks.data_path.{'floor' if name == FLOOR else 'plain'}"
            process = processes.start(name, [sys.executable, "-m", module, str(port), *engines.urls], cwd=HERE)
        else:
            peer, end = _peer(name)
            process = processes.start(name, peer.line(POLICIES[end], port, free_port(), engines.urls))
        rows.append(Row(name, f"http://127.0.0.1:{port}", process))
    for row in rows:
        serving(row, text)
    return rows


def configuration(port: int, engines: Sequence[str], tokenizer: Path | None) -> dict[str, Any]:
    """As a user writes it: everything else is at its default."""
    model: dict[str, Any] = {"name": MODEL, "endpoints": [{"url": url} for url in engines]}
    if tokenizer is not None:
        model["tokenizer"] = str(tokenizer)
    return {"listen": {"port": port, "admin": f"127.0.0.1:{free_port()}", "lame_duck": 0}, "models": [model]}


def gateway(
    processes: Processes, name: str, config: Mapping[str, Any], build: Build, more: Mapping[str, str] | None = None
) -> Process:
    """Start the gateway of ``build``. Its log is on, and goes to a file."""
    path = processes.folder / f"{name}.json"
    path.write_text(json.dumps(config))
    return processes.start(
        name,
        build.command("serve", str(path)),
        env=offline(os.environ) | dict(more or {}),
        cwd=build.home,
    )


def serving(row: Row, text: Text) -> None:
    """Wait until ``row`` answers ``STEADY`` times in a row; enters its processes. Raises NotReady."""
    assert row.process is not None
    # A gateway that counts tokens as well must find itself right, or it would not go by them.
    tokens = len(encoder(text).encode(render(GREETING, ask=True), add_special_tokens=False).ids)
    body = {"model": MODEL, "max_tokens": 1, "messages": GREETING, ORDERS: f"tokens={tokens}"}

    def steady() -> bool:
        with contextlib.suppress(OSError, ValueError):
            return all(ask(f"{row.url}/v1/chat/completions", body) for _ in range(STEADY))
        return False

    wait_for(steady, f"{row.name} to serve", row.process, START_SECONDS)
    row.pids = tree(row.process.pid)
    for other in row.beside:
        serving(other, text)
        row.pids = [*row.pids, *other.pids]


def ask(url: str, body: Mapping[str, Any] | None = None, timeout: float = 10.0) -> Any:
    """A GET, or a POST of ``body``; its JSON. Raises OSError, ValueError."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=timeout) as answer:
        return json.loads(answer.read())


def _ours(processes: Processes, name: str, *arguments: str) -> Process:
    command = [sys.executable, "-m", f"benchmarks.data_path.{name}", *arguments]
    return processes.start(name, command, cwd=HERE, talks=True)


def _peer(name: str) -> tuple[Peer, str]:
    kind, _, end = name.rpartition("-")
    return next(peer for peer in PEERS if peer.name == kind), end
