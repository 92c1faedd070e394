"""Runs ``kvgate demo``: starts engines and the gateway as processes that listen on loopback, sends the traffic, and
reports the results."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console

from gateway.commands.demo.chart import draw
from gateway.commands.demo.console import Ticker, introduce, table
from gateway.commands.demo.drive import Result, counted, drive
from gateway.commands.demo.envoy import start_envoy
from gateway.commands.demo.scene import THROUGH_ENVOY, VARIANTS, Scene, Variant
from gateway.commands.processes import START_SECONDS, NotReady, Processes, free_port, offline, sigterm_raises, wait_for
from gateway.core.clock import SystemClock
from gateway.framework import Clock


def start_engines(processes: Processes, count: int, flags: Sequence[str]) -> list[str]:
    """Start simulated engines; returns their URLs. They start side by side: most of it is imports."""
    command = [sys.executable, "-m", "simulator", *flags]
    env = environment(os.environ)
    started = [processes.start(f"engine-{number}", command, env=env, talks=True) for number in range(count)]
    return [json.loads(process.line())["url"] for process in started]


def start_gateway(processes: Processes, config: Mapping[str, Any], name: str = "gateway") -> str:
    """Start a gateway as a user does; returns its URL once all of its engines are usable. ``name``: its own among all
    processes."""
    path = processes.folder / f"{name}.yaml"
    path.write_text(json.dumps(config, indent=1))
    url = f"http://127.0.0.1:{(port := free_port())}"
    command = [sys.executable, "-m", "gateway.cli", "serve", str(path), "--port", str(port)]
    process = processes.start(name, command, env=environment(os.environ))
    endpoints = sum(len(model["endpoints"]) for model in config["models"])
    try:
        wait_for(lambda: _usable(url) == endpoints, "the engines to be usable", process, START_SECONDS)
    except NotReady:
        raise NotReady(f"{name} did not start:\n{process.tail()}") from None
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


# vLLM's names of the counters; both count tokens.
ENGINE_COUNTERS = ("vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total")


def run(
    output: Path = Path("out/demo.png"),
    scene: Scene | None = None,
    console: Console | None = None,
    envoy: Path | None = None,
) -> int:
    """Run the scene once with each variant, print the table, and write the chart and its numbers. ``envoy``: the
    program; None: not through Envoy. Returns the exit code: 0, or 1 if a process did not start or a request failed."""
    scene, console, clock = scene or Scene(), console or Console(), SystemClock()
    introduce(console, scene)
    results = []
    with tempfile.TemporaryDirectory(prefix="kvgate-demo-") as folder, sigterm_raises(KeyboardInterrupt()):
        tokenizer = build_tokenizer(Path(folder) / "tokenizer")
        for variant in VARIANTS if envoy is None else (*VARIANTS, THROUGH_ENVOY):
            try:
                results.append(play(scene, variant, tokenizer, Path(folder), clock, console, envoy))
            except (NotReady, httpx.HTTPError) as error:
                reason = str(error) if isinstance(error, NotReady) else f"an engine died: {error!r}"
                console.print(reason, style="red", markup=False, highlight=False)
                return 1
    console.print(table(results))
    save(results, scene, output, console)
    for result in results:
        if result.errors:
            text = f"{result.name}: {result.errors} requests failed, the first: {result.first_error}"
            console.print(text, style="red", markup=False, highlight=False)
    return 1 if any(result.errors for result in results) else 0


def play(
    scene: Scene,
    variant: Variant,
    tokenizer: Path,
    folder: Path,
    clock: Clock,
    console: Console,
    envoy: Path | None = None,
) -> Result:
    """Run the scene with one variant, on engines that were just started."""
    with Ticker(console, variant.name, scene.requests) as ticker, Processes(folder) as processes:
        urls = start_engines(processes, scene.engines, scene.engine_flags(tokenizer))
        config = variant.config(urls, tokenizer)
        if variant.envoy and envoy is not None:
            gateway = start_envoy(processes, config, envoy, environment(os.environ))
        else:
            gateway = start_gateway(processes, config)
        ticker.serving()
        began = clock.monotonic()
        samples = asyncio.run(drive(scene, gateway, clock, ticker.tick))
        seconds = clock.monotonic() - began
        prompt_tokens, cached_tokens = asyncio.run(counted(urls, *ENGINE_COUNTERS))
    errors = [sample.error for sample in samples if sample.error]
    return Result(
        name=variant.name,
        requests=len(samples),
        errors=len(errors),
        prompt_tokens=round(prompt_tokens),
        cached_tokens=round(cached_tokens),
        ttfts=tuple(sample.ttft for sample in samples if sample.ttft is not None),
        seconds=seconds,
        first_error=errors[0] if errors else "",
    )


def build_tokenizer(folder: Path) -> Path:
    """Build a small tokenizer with a chat template, which engines and gateway share. Nothing is downloaded."""
    code = "import sys; from simulator.tokenizer import build_tokenizer; build_tokenizer(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, str(folder)], check=True, env=environment(os.environ))
    return folder


def save(results: Sequence[Result], scene: Scene, output: Path, console: Console) -> None:
    """Write the numbers, and the chart if matplotlib is installed."""
    numbers = output.with_suffix(".json")
    numbers.parent.mkdir(parents=True, exist_ok=True)
    numbers.write_text(json.dumps({"scene": asdict(scene), "runs": [r.as_json() for r in results]}, indent=1) + "\n")
    console.print(f"numbers: {numbers}", markup=False, highlight=False, soft_wrap=True)
    if not all(result.ttfts for result in results):
        return
    try:
        draw(results, scene, output)
    except ImportError:
        console.print("no chart: it needs matplotlib (pip install 'kvgate[demo]')", markup=False, highlight=False)
    else:
        console.print(f"chart:   {output}", markup=False, highlight=False, soft_wrap=True)
