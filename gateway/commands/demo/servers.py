"""The engines and the gateway of a run, as processes that listen on loopback."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from gateway.commands.processes import START_SECONDS, NotReady, Processes, free_port, offline, wait_for


def start_engines(processes: Processes, count: int, flags: Sequence[str]) -> list[str]:
    """Start simulated engines; returns their URLs. They start side by side: most of it is imports."""
    command = [sys.executable, "-m", "simulator", *flags]
    env = environment(os.environ)
    started = [processes.start(f"engine-{number}", command, env=env, talks=True) for number in range(count)]
    return [json.loads(process.line())["url"] for process in started]


def start_gateway(processes: Processes, config: Mapping[str, Any]) -> str:
    """Start a gateway as a user does; returns its URL once all of its engines are usable."""
    path = processes.folder / "plugins.yaml"
    path.write_text(json.dumps(config, indent=1))
    url = f"http://127.0.0.1:{(port := free_port())}"
    command = [sys.executable, "-m", "gateway.cli", "serve", str(path), "--port", str(port)]
    process = processes.start("gateway", command, env=environment(os.environ))
    endpoints = sum(len(model["endpoints"]) for model in config["models"])
    try:
        wait_for(lambda: _usable(url) == endpoints, "the engines to be usable", process, START_SECONDS)
    except NotReady:
        raise NotReady(f"gateway did not start:\n{process.tail()}") from None
    return url


def environment(of_ours: Mapping[str, str]) -> dict[str, str]:
    """The environment of the demo's processes: one thread for tokenizers, since two cores are shared by seven processes
    and a pool of threads in each would only get in the way of the others."""
    return offline(of_ours) | {"RAYON_NUM_THREADS": "1"}


def _usable(url: str) -> int:
    """The number of endpoints that the gateway can use; 0 while it does not answer."""
    try:
        answer = httpx.get(f"{url}/readyz", timeout=2.0, trust_env=False)
        return sum(int(model["usable"]) for model in answer.json()["models"].values())
    except (httpx.HTTPError, ValueError, KeyError):
        return 0
