"""The demo through Envoy: the picker and an Envoy before it, as the documentation tells users to start them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx

from gateway.commands.processes import START_SECONDS, NotReady, Processes, free_port, wait_for


def start_envoy(processes: Processes, config: Mapping[str, Any], envoy: Path, env: Mapping[str, str]) -> str:
    """Start both; returns the URL at which Envoy serves once the picker finds all engines usable and Envoy finds the
    picker healthy. ``envoy``: the program. Raises NotReady."""
    kvgate = [sys.executable, "-m", "gateway.cli"]
    ports = {name: free_port() for name in ("listen", "admin", "picker", "metrics")}
    at = {name: f"127.0.0.1:{port}" for name, port in ports.items()}
    path, made = processes.folder / "plugins.yaml", processes.folder / "envoy.yaml"
    settings = {"listen": {"admin": at["metrics"], "lame_duck": 0}, "epp": {"listen": at["picker"], "health": ""}}
    path.write_text(json.dumps({**config, **settings}, indent=1))
    try:
        picker = processes.start("picker", [*kvgate, "epp", str(path)], env=env)
        endpoints = sum(len(model["endpoints"]) for model in config["models"])
        up = f"http://{at['metrics']}/metrics"
        wait_for(lambda: _told(up).count("} 1.0") >= endpoints, "the engines to be usable", picker, START_SECONDS)

        words = [*kvgate, "envoy", str(path), "--listen", at["listen"], "--admin", at["admin"]]
        with made.open("w") as file:
            subprocess.run(words, stdout=file, env=dict(env), check=True)
        command: list[str | Path] = [envoy, "-c", made, "--disable-hot-restart", "--log-level", "error"]
        process = processes.start("envoy", command, env=env)
        healthy = f"http://{at['admin']}/stats?filter=cluster.picker.membership_healthy"
        wait_for(lambda: _told(healthy).strip().endswith(": 1"), "the picker to be healthy", process, START_SECONDS)
    except (NotReady, OSError, subprocess.CalledProcessError) as error:
        raise NotReady(f"Envoy or its picker did not start:\n{error}") from None
    return f"http://{at['listen']}"


def _told(url: str) -> str:
    """The page there; of metrics only which engines are up; empty while nobody answers."""
    try:
        page = httpx.get(url, timeout=2.0, trust_env=False).text
    except httpx.HTTPError:
        return ""
    return "\n".join(line for line in page.splitlines() if not url.endswith("/metrics") or "kvgate_engine_up{" in line)
