"""A text to draw prompts from that takes no minute to make, and a run's processes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from benchmarks.data_path import prompts
from benchmarks.data_path.rows import HERE
from gateway.commands.processes import Processes
from simulator.tokenizer import build_tokenizer


def small_text(folder: Path) -> prompts.Text:
    """As ``prompts.text``, with one chunk of each size, which is every other chunk's text as well."""
    made = prompts.Text(build_tokenizer(folder / "tokenizer"), folder / "small.txt", folder / "large.txt", (), ())
    chunks = {}
    for name, size in (("small", prompts.SMALL), ("large", prompts.LARGE)):
        chunk = (" the gateway routes each request" * 8)[:size]
        (folder / f"{name}.txt").write_text(chunk * prompts.CHUNKS)
        chunks[name] = (len(prompts.encoder(made).encode(chunk, add_special_tokens=False).ids),) * prompts.CHUNKS
    return prompts.Text(made.folder, made.small, made.large, chunks["small"], chunks["large"])


def engines(processes: Processes, *events: str) -> list[str]:
    """URLs of mock engines, one for each of ``events``."""
    command = [sys.executable, "-m", "benchmarks.data_path.engines", *events]
    process = processes.start("engines", command, cwd=HERE, talks=True)
    urls: list[str] = json.loads(process.line())["urls"]
    return urls
