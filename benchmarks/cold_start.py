"""``python -m benchmarks.cold_start``: how long ``kvgate serve`` takes from its start to its first answer.

Each round starts a gateway in front of a simulated engine, and asks until it answers a chat. *By file*: its tokenizer's
folder is read as it is. *By transformers*: the same folder, with one key of which this is not known to be right.
*Without*: no tokenizer. Modules are compiled before, as an installer does it. Seconds of the processor depend less on
what else the machine does than seconds of the clock.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table

from benchmarks.data_path.usage import cpu
from gateway.commands.processes import START_SECONDS, Processes, free_port, offline, sigterm_raises
from simulator.tokenizer import build_tokenizer

CHAT = {"model": "sim", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}

PAUSE = 0.005
"""Seconds between two attempts to connect."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cold_start", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="starts of each (5)")
    rounds: int = parser.parse_args().rounds
    with (
        sigterm_raises(SystemExit(143)),
        tempfile.TemporaryDirectory() as folder,
        Processes(Path(folder)) as processes,
    ):
        engine = processes.start("engine", [sys.executable, "-m", "simulator"], env=offline(os.environ), talks=True)
        url = json.loads(engine.line())["url"]
        configs = {name: _config(url, tokenizer) for name, tokenizer in _tokenizers(Path(folder)).items()}
        for name, config in configs.items():  # compiles
            _start(processes, name, config)
        taken = {name: [_start(processes, name, config) for _ in range(rounds)] for name, config in configs.items()}
    table = Table("tokenizer", "s to the first answer", "s of the processor", title=f"{rounds} starts each, medians")
    for name, samples in taken.items():
        table.add_row(name, *(f"{median(sample[place] for sample in samples):.2f}" for place in (0, 1)))
    Console(width=100).print(table)
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    return 0


def _tokenizers(folder: Path) -> Mapping[str, str | None]:
    known, other = build_tokenizer(folder / "known"), build_tokenizer(folder / "other")
    path = other / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"of_no_meaning": True}))
    return {"by file": str(known), "by transformers": str(other), "without": None}


def _config(engine: str, tokenizer: str | None) -> Mapping[str, Any]:
    model = {"name": "sim", "tokenizer": tokenizer, "endpoints": [{"url": engine}]}
    return {"listen": {"admin": "", "lame_duck": 0}, "models": [model]}


def _start(processes: Processes, name: str, config: Mapping[str, Any]) -> tuple[float, float]:
    """Seconds to its first answer, and of the processor until then."""
    path = processes.folder / f"{name}.yaml"
    path.write_text(json.dumps(config))
    url, command = (
        f"http://127.0.0.1:{(port := free_port())}",
        [sys.executable, "-m", "gateway.cli", "serve", str(path)],
    )
    began = time.monotonic()
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    env = offline(kept) | {"PYTHONPYCACHEPREFIX": str(processes.folder / "compiled")}
    process = processes.start(name, [*command, "--port", str(port)], env=env)
    with httpx.Client(verify=False, trust_env=False, timeout=30) as client:
        while time.monotonic() < began + START_SECONDS:
            try:
                if client.post(f"{url}/v1/chat/completions", json=CHAT).status_code == 200:
                    break
            except httpx.TransportError:
                time.sleep(PAUSE)
    taken = time.monotonic() - began, cpu([process.pid])
    process.kill()
    return taken


if __name__ == "__main__":
    sys.exit(main())
