"""What it costs to know who holds a prompt of 100,000 tokens, over 100 endpoints and 2 million indexed blocks."""

from __future__ import annotations

import argparse
import gc
import random
from time import perf_counter

from benchmarks.kv_scene import UNIT, endpoint, fill, hold, index_of, tokens
from benchmarks.kv_table import Figure, median_of, show

BLOCKS = 6250
"""Of the prompt: 100,000 tokens."""

ENDPOINTS = 100
HOLDERS = 30
ROUNDS = 21


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=2_000_000, help="indexed beside the prompt (default 2,000,000)")
    options = parser.parse_args()
    chance = random.Random(4)
    endpoints = [endpoint(slot) for slot in range(ENDPOINTS)]
    index = index_of(endpoints, max_blocks=2 * options.blocks)
    fill(index, chance, endpoints, options.blocks)
    several = [tokens(chance, BLOCKS) for _ in range(ROUNDS)]
    for prompt in several:  # a new prompt each round: no round finds its keys in the processor's cache
        for slot in chance.sample(range(ENDPOINTS), HOLDERS):
            hold(index, slot, chance, prompt[: chance.randint(1, BLOCKS) * UNIT])
    shared = tokens(chance, 512)
    ends = [tokens(chance, BLOCKS - 512) for _ in range(ROUNDS)]
    for slot in range(ENDPOINTS):
        hold(index, slot, chance, shared)
    for end in ends:
        for slot in chance.sample(range(ENDPOINTS), 3):
            hold(index, slot, chance, shared + end)
    gc.collect()
    gc.freeze()

    count = BLOCKS * UNIT
    keyed = [index.keys(prompt, count, True, None, None) for prompt in several]
    joined = [index.keys(shared + end, count, True, None, None) for end in ends]
    unknown = [index.keys(tokens(chance, BLOCKS), count, True, None, None) for _ in range(ROUNDS)]

    def match(prompts: list[object]) -> float:
        keys = prompts.pop()
        began = perf_counter()
        index.match(keys, count, endpoints)  # type: ignore[arg-type]
        return (perf_counter() - began) * 1000

    def hashed(prompts: list[object]) -> float:
        prompt = prompts.pop()
        began = perf_counter()
        keys = index.keys(prompt, count, True, None, None)  # type: ignore[arg-type]
        index.match(keys, count, endpoints)
        return (perf_counter() - began) * 1000

    def placed(prompts: list[object]) -> float:
        keys = prompts.pop()
        began = perf_counter()
        index.placed(keys, endpoints[0])  # type: ignore[arg-type]
        return (perf_counter() - began) * 1000

    def median(run, prompts) -> float:  # type: ignore[no-untyped-def]
        left = list(prompts)
        return median_of(len(left), lambda: run(left))

    figures = [
        Figure("30 of 100 hold a prefix", median(match, keyed), "ms", 0.5),
        Figure("the same, keys hashed first", median(hashed, several), "ms", 1.5),
        Figure("100 hold 512 blocks, 3 all", median(match, joined), "ms", 0.5),
        Figure("nobody holds anything", median(match, unknown), "ms", 0.5),
        Figure("a cold placement of it", median(placed, unknown), "ms", 1.0),
        Figure("30 hold a prefix, while 21 are predicted", median(match, keyed), "ms", 0.5),
    ]
    show(f"match 100,000 tokens, {index.blocks:,} keys indexed", figures)


if __name__ == "__main__":
    main()
