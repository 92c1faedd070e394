"""What the index needs for each block that an endpoint holds, everything counted: resident memory before and after."""

from __future__ import annotations

import argparse
import gc
import random

from benchmarks.kv_scene import endpoint, fill, index_of
from benchmarks.kv_table import Figure, resident, show

ENDPOINTS = 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--large", action="store_true", help="10 million blocks instead of one")
    options = parser.parse_args()
    blocks = 10_000_000 if options.large else 1_000_000
    chance = random.Random(4)
    endpoints = [endpoint(slot) for slot in range(ENDPOINTS)]
    fill(index_of(endpoints, max_blocks=blocks), chance, endpoints, ENDPOINTS * 1024)  # warm: arenas, code
    gc.collect()
    before = resident()
    index = index_of(endpoints, max_blocks=2 * blocks)
    fill(index, chance, endpoints, blocks)
    gc.collect()
    figure = Figure(
        "a block of an endpoint", (resident() - before) / index.blocks, "bytes", 60 if options.large else 200
    )
    show(f"memory, {index.blocks:,} blocks that nobody shares, {ENDPOINTS} endpoints", [figure])


if __name__ == "__main__":
    main()
