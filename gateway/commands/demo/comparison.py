"""Runs ``kvgate demo``: starts the processes, sends the traffic, and reports the results."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import httpx
from rich.console import Console

from gateway.commands.demo.chart import draw
from gateway.commands.demo.console import Ticker, introduce, table
from gateway.commands.demo.drive import counted, drive
from gateway.commands.demo.result import Result
from gateway.commands.demo.scene import VARIANTS, Scene, Variant
from gateway.commands.demo.servers import environment, start_engines, start_gateway
from gateway.commands.processes import NotReady, Processes, sigterm_raises
from gateway.core.clock import SystemClock
from gateway.framework import Clock

# vLLM's names of the counters; both count tokens.
ENGINE_COUNTERS = ("vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total")


def run(output: Path = Path("out/demo.png"), scene: Scene | None = None, console: Console | None = None) -> int:
    """Run the scene once with each variant, print the table, and write the chart and its numbers. Returns the exit
    code: 0, or 1 if a process did not start or a request failed."""
    scene, console, clock = scene or Scene(), console or Console(), SystemClock()
    introduce(console, scene)
    results = []
    with tempfile.TemporaryDirectory(prefix="kvgate-demo-") as folder, sigterm_raises(KeyboardInterrupt()):
        tokenizer = build_tokenizer(Path(folder) / "tokenizer")
        for variant in VARIANTS:
            try:
                results.append(play(scene, variant, tokenizer, Path(folder), clock, console))
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


def play(scene: Scene, variant: Variant, tokenizer: Path, folder: Path, clock: Clock, console: Console) -> Result:
    """Run the scene with one variant, on engines that were just started."""
    with Ticker(console, variant.name, scene.requests) as ticker, Processes(folder) as processes:
        urls = start_engines(processes, scene.engines, scene.engine_flags(tokenizer))
        gateway = start_gateway(processes, variant.config(urls, tokenizer))
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
