"""What it costs to know who holds a prompt of 100,000 tokens, over 100 endpoints and 2 million indexed blocks."""

from __future__ import annotations

import argparse
import gc
import random
import statistics
from array import array
from collections.abc import Callable, Iterable
from time import perf_counter
from typing import TypeVar

from benchmarks.kv_scene import UNIT, endpoint, fill, hold, index_of, tokens
from benchmarks.kv_table import Figure, show
from gateway.core.prompt import Prompt
from gateway.kvcache.index.keys import BlockKeys

Subject = TypeVar("Subject")

BLOCKS = 6250
"""Of the prompt: 100,000 tokens."""

ENDPOINTS = 100
HOLDERS = 30
ROUNDS = 21


def milliseconds(run: Callable[[Subject], object], subjects: Iterable[Subject]) -> float:
    """The median that ``run`` takes; each subject once."""
    times = []
    for subject in subjects:
        began = perf_counter()
        run(subject)
        times.append(perf_counter() - began)
    return statistics.median(times) * 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=2_000_000, help="indexed beside the prompt (default 2,000,000)")
    options = parser.parse_args()
    chance = random.Random(4)
    endpoints = [endpoint(slot) for slot in range(ENDPOINTS)]
    index = index_of(endpoints, max_blocks=options.blocks + ENDPOINTS * ROUNDS * BLOCKS)
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

    def keys_of(prompt: array[int]) -> BlockKeys:
        return index.keys(Prompt(prompt, count, True))

    def match(keys: BlockKeys) -> object:
        return index.match(keys, count, endpoints)

    hashed_first = milliseconds(lambda prompt: match(keys_of(prompt)), several)
    keyed, joined = [keys_of(prompt) for prompt in several], [keys_of(shared + end) for end in ends]
    unknown = [keys_of(tokens(chance, BLOCKS)) for _ in range(ROUNDS)]
    figures = [
        Figure("30 of 100 hold a prefix", milliseconds(match, keyed), "ms", 0.5),
        Figure("the same, keys hashed first, all anew", hashed_first, "ms", 1.5),
        Figure("100 hold 512 blocks, 3 all", milliseconds(match, joined), "ms"),
        Figure("nobody holds anything", milliseconds(match, unknown), "ms"),
        Figure("a cold placement of it", milliseconds(lambda keys: index.placed(keys, endpoints[0]), unknown), "ms", 1),
        Figure("30 hold a prefix, while 21 are predicted", milliseconds(match, keyed), "ms", 0.5),
    ]
    show(f"match 100,000 tokens, {index.blocks:,} keys indexed", figures)


if __name__ == "__main__":
    main()
