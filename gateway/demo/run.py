"""``kvgate demo`` from its beginning to its end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import httpx
from rich.console import Console

from gateway.demo.chart import draw
from gateway.demo.drive import counted, drive
from gateway.demo.processes import DidNotStart, Processes, environment
from gateway.demo.result import Result
from gateway.demo.scene import VARIANTS, Scene, Variant
from gateway.demo.show import Ticker, introduce, table
from gateway.framework import Clock, SystemClock

# In tokens; vLLM's names.
ENGINE_COUNTERS = ("vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total")


def run(output: Path = Path("out/demo.png"), scene: Scene | None = None, console: Console | None = None) -> int:
    """Play the scene once for each variant, show the table, write the chart and its numbers. The exit code: 0, or 1
    if a process did not start or a request failed."""
    scene, console, clock = scene or Scene(), console or Console(), SystemClock()
    introduce(console, scene)
    results = []
    with tempfile.TemporaryDirectory(prefix="kvgate-demo-") as folder, terminated_as_interrupted():
        tokenizer = build_tokenizer(Path(folder) / "tokenizer")
        for variant in VARIANTS:
            try:
                results.append(play(scene, variant, tokenizer, Path(folder), clock, console))
            except (DidNotStart, httpx.HTTPError) as error:
                reason = str(error) if isinstance(error, DidNotStart) else f"an engine died: {error!r}"
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
    """One run on engines that nobody has used before."""
    with Ticker(console, variant.name, scene.requests) as ticker, Processes(folder, clock) as processes:
        urls = processes.engines(scene.engines, scene.engine_flags(tokenizer))
        gateway = processes.gateway(variant.config(urls, tokenizer))
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
    """A small real tokenizer with a chat template, which engines and gateway share; nothing is downloaded."""
    code = "import sys; from simulator.tokenizer import build_tokenizer; build_tokenizer(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, str(folder)], check=True, env=environment(os.environ))
    return folder


def save(results: Sequence[Result], scene: Scene, output: Path, console: Console) -> None:
    """The numbers always, the chart where it can be drawn."""
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


@contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM ends the demo as Ctrl-C does, with its processes stopped."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
