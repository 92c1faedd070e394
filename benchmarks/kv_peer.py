"""The radix-tree indexer of ``ai-dynamo-runtime`` (Rust) at the same tasks, in a virtual environment of its own.

What it is given is JSON with hashes made before, where ours reads the engine's own bytes and makes the keys: its rates
of events flatter it by that.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import venv
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.kv_table import Figure, resident, show

PACKAGE = "ai-dynamo-runtime==1.6.1"
ENDPOINTS = 100
HOLDERS = 30
BLOCKS = 6250
UNIT = 16
ROUNDS = 11
PROMPT = 1024


def stored(names: list[int], contents: list[int], parent: int | None) -> bytes:
    blocks = [{"block_hash": name, "tokens_hash": tokens} for name, tokens in zip(names, contents, strict=True)]
    return json.dumps({"event_id": 1, "data": {"stored": {"parent_hash": parent, "blocks": blocks}}}).encode()


def removed(names: list[int]) -> bytes:
    return json.dumps({"event_id": 1, "data": {"removed": {"block_hashes": names}}}).encode()


def measure(held: int) -> list[Figure]:
    """Inside its environment."""
    from dynamo.llm import RadixTree, compute_block_hash_for_seq  # type: ignore[import-not-found]  # only there

    chance = random.Random(4)
    tree: Any = RadixTree()

    def some(count: int) -> list[int]:
        return [chance.getrandbits(63) for _ in range(count)]

    def median(run: Any, subjects: list[Any]) -> float:
        times = []
        for subject in subjects:
            began = perf_counter()
            run(subject)
            times.append(perf_counter() - began)
        return sorted(times)[len(times) // 2]

    before = resident()
    for number in range(held // PROMPT):
        tree.apply_event(number % ENDPOINTS, stored(some(PROMPT), some(PROMPT), None))
    bytes_each = (resident() - before) / (held // PROMPT * PROMPT)
    prompts = [[chance.randrange(128_000) for _ in range(BLOCKS * UNIT)] for _ in range(ROUNDS)]
    hashed = [compute_block_hash_for_seq(prompt, UNIT) for prompt in prompts]
    for contents in hashed:
        names = some(BLOCKS)
        for worker in chance.sample(range(ENDPOINTS), HOLDERS):
            depth = chance.randint(1, BLOCKS)
            tree.apply_event(worker, stored(names[:depth], contents[:depth], None))
    matched = median(tree.find_matches, hashed) * 1000
    both = median(lambda prompt: tree.find_matches(compute_block_hash_for_seq(prompt, UNIT)), prompts) * 1000
    figures = [
        Figure("match 100,000 tokens, hashes given", matched, "ms"),
        Figure("the same, hashed first", both, "ms"),
        Figure("a block of an endpoint", bytes_each, "bytes"),
    ]
    for run in (1, 64):
        ends: list[int | None] = [None] * 64
        events, gone = [], []
        for _ in range(64_000 // run // 64):
            for answer, parent in enumerate(ends):
                names = some(run)
                events.append(stored(names, some(run), parent))
                gone.append(removed(names))
                ends[answer] = names[-1]
        for what, subjects in (("stored", events), ("removed", gone[::-1])):
            began = perf_counter()
            for event in subjects:
                tree.apply_event(0, event)
            tree.find_matches([1])  # the tree has a thread of its own: this waits until it is through
            rate = len(subjects) * run / (perf_counter() - began)
            figures.append(Figure(f"{what}, events of {run} block{'s' * (run > 1)}", rate, "blocks/s"))
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=2_000_000, help="indexed before (default 2,000,000)")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        show(f"beside it: {PACKAGE}, {options.blocks:,} blocks indexed", measure(options.blocks))
        return
    home = Path("out", "peer")
    python = str(home / "bin" / "python")
    try:
        if not Path(python).exists():
            venv.create(home, with_pip=True)
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", PACKAGE]
        subprocess.run(pip, check=True, timeout=600)
        inside = [python, "-m", "benchmarks.kv_peer", "--inside", "--blocks", str(options.blocks)]
        subprocess.run(inside, check=True, timeout=1200, env={**os.environ, "PYTHONPATH": "."})
    except (OSError, subprocess.SubprocessError) as error:
        print(f"\n{PACKAGE} is left out: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
