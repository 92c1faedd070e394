"""How many blocks of events an index takes a second, from a message's bytes on, on one core; and how long one message
stops the event loop at most: 1,024 blocks of a prompt, while a table grows."""

from __future__ import annotations

import argparse
import gc
import random

from benchmarks.kv_scene import decoding, endpoint, evictions, fill, index_of, ingest, prefilling
from benchmarks.kv_table import Figure, cpu, show

ENDPOINTS = 8
ROUNDS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=100_000, help="in each of five rounds (default 100,000)")
    parser.add_argument("--held", type=int, default=500_000, help="indexed before (default 500,000)")
    parser.add_argument("--large", action="store_true", help="as --held 10,000,000")
    options = parser.parse_args()
    held = 10_000_000 if options.large else options.held
    chance = random.Random(4)
    endpoints = [endpoint(slot) for slot in range(ENDPOINTS)]
    index = index_of(endpoints, max_blocks=4 * held + 20 * options.blocks)
    gc.disable()
    fill(index, chance, endpoints, held)
    seconds: dict[str, list[float]] = {"one": [], "gone": [], "run": [], "run gone": []}
    for _ in range(ROUNDS):
        slot = chance.randrange(ENDPOINTS)
        for shape, name, ends, run in ((decoding, "one", "gone", 1), (prefilling, "run", "run gone", 64)):
            messages, hashes = shape(chance, options.blocks)
            gone = evictions(hashes[::-1], run)
            gc.collect()
            gc.freeze()  # as in a gateway, whose collector has better to do than to walk the index
            seconds[name].append(cpu(lambda: ingest(index, slot, messages)) / len(hashes))  # noqa: B023 -- run at once
            seconds[ends].append(cpu(lambda: ingest(index, slot, gone)) / len(hashes))  # noqa: B023 -- run at once

    def rate(name: str) -> float:
        return 1 / sorted(seconds[name])[ROUNDS // 2]

    figures = [
        Figure("stored, events of one block", rate("one"), "blocks/s", 300_000, most=False),
        Figure("removed, events of one block", rate("gone"), "blocks/s", 300_000, most=False),
        Figure("stored, events of 64 blocks", rate("run"), "blocks/s", 600_000, most=False),
        Figure("removed, events of 64 blocks", rate("run gone"), "blocks/s", 600_000, most=False),
        Figure("longest message, all of them", index.longest * 1000, "ms", 10),
    ]
    show(f"ingest, {held:,} blocks held before", figures)


if __name__ == "__main__":
    main()
