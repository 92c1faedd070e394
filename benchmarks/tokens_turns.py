"""What a conversation's next turn costs, from its messages to its block keys, beside encoding it whole."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from time import perf_counter, process_time

from benchmarks.kv_table import Figure, cpu, show
from gateway.core.clock import SystemClock
from gateway.core.observer import Observer
from gateway.core.prompt import ChatInput
from gateway.kvcache.index.cache_index import CacheIndex
from gateway.kvcache.settings import CacheSettings
from gateway.tokens.libraries import set_environment
from gateway.tokens.settings import TokenSettings
from gateway.tokens.tokenizer import ModelTokens
from simulator.tokenizer import build_tokenizer

TURNS = 40
TOKENS = 100_000
ROUNDS = 11
SHORT, LONG = 20, 1000
"""Words of a message: some 60 and 3,000 tokens of the benchmark's small tokenizer."""

PROSE = (
    "the gateway routes each request to an engine that holds most of its prefix and answers it soonest while other "
    "engines compute what nobody has seen before so that blocks are found where they were left"
)

Message = Mapping[str, str]


class Model:
    """A tokenizer with its memory, and an index."""

    def __init__(self, settings: TokenSettings) -> None:
        self.tokens = ModelTokens(settings, "bench", Observer())
        self.index = CacheIndex(CacheSettings(), "bench", SystemClock(), Observer())

    async def keyed(self, messages: Sequence[Message]) -> tuple[float, float, int]:
        """Milliseconds from messages to block keys, of CPU and by the clock, and the prompt's tokens."""
        asked = ChatInput(messages, json.dumps(messages).encode())
        began, spent = perf_counter(), process_time()
        prompt = await self.tokens.tokenize(asked)
        self.index.keys(prompt)
        return (process_time() - spent) * 1000, (perf_counter() - began) * 1000, prompt.count


def prose(chance: random.Random, words: int) -> str:
    ends = ("", "", "", ",", ".", ".\n", f" {chance.randrange(9999)}")
    some = PROSE.split()
    return " ".join(chance.choice(some) + chance.choice(ends) for _ in range(words))


def exchange(chance: random.Random, answer: int, question: int) -> list[Message]:
    return [
        {"role": "assistant", "content": prose(chance, answer)},
        {"role": "user", "content": prose(chance, question)},
    ]


async def run(turns: int, total: int) -> list[Figure]:
    chance = random.Random(4)
    with tempfile.TemporaryDirectory() as folder:
        path = str(build_tokenizer(folder, vocabulary=2048))
        model, whole = Model(TokenSettings(path)), Model(TokenSettings(path, memory_bytes=0))
        for one in (model, whole):
            await one.tokens.load()
    _, _, probe = await whole.keyed(exchange(chance, 1000, 1000))
    answer = round(total / probe * 2000 / (turns - 1)) - SHORT
    times: dict[str, list[float]] = {"short": [], "clock": [], "long": [], "whole": [], "render": [], "again": []}
    counts = []
    for _ in range(ROUNDS):
        messages = [{"role": "system", "content": prose(chance, answer)}, *exchange(chance, SHORT, SHORT)[1:]]
        for _ in range(turns - 2):
            await model.keyed(messages)
            messages = [*messages, *exchange(chance, answer, SHORT)]
        await model.keyed(messages)
        last = [*messages, *exchange(chance, SHORT, SHORT)]
        spent, took, count = await model.keyed(last)
        times["short"].append(spent)
        times["clock"].append(took)
        counts.append(count)
        times["again"].append((await model.keyed(last))[0])
        times["long"].append((await model.keyed([*messages, *exchange(chance, LONG, SHORT)]))[0])
        times["whole"].append((await whole.keyed(last))[0])
        renderer = whole.tokens._renderer
        assert renderer is not None
        times["render"].append(cpu(partial(renderer.render, ChatInput(last, b""))) * 1000)
    for one in (model, whole):
        await one.tokens.close()
    median = {name: statistics.median(values) for name, values in times.items()}
    return [
        Figure("tokens of the conversation", statistics.median(counts), "", None),
        Figure("its last turn, a short answer and question new", median["short"], "ms CPU", 1.5),
        Figure("the same by the clock", median["clock"], "ms"),
        Figure("of that, rendering the template", median["render"], "ms CPU"),
        Figure("the same turn once more", median["again"], "ms CPU"),
        Figure("with a new answer of 3,000 tokens, in a thread", median["long"], "ms CPU"),
        Figure("everything encoded and hashed", median["whole"], "ms CPU"),
        Figure("that, to the last turn", median["whole"] / median["short"], "times"),
    ]


def main() -> None:
    set_environment(os.environ)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=TURNS, help=f"(default {TURNS})")
    parser.add_argument("--tokens", type=int, default=TOKENS, help=f"in all, about (default {TOKENS:,})")
    options = parser.parse_args()
    figures = asyncio.run(run(options.turns, options.tokens))
    show(f"turn {options.turns} of a conversation, from messages to block keys, median of {ROUNDS}", figures)


if __name__ == "__main__":
    main()
