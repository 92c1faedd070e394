"""Prompt texts of a wanted length, each different from every other by its name."""

from __future__ import annotations

import random

# fmt: off
WORDS = [
    "weather", "wind", "rain", "sun", "city", "river", "bridge", "market", "garden", "window", "letter", "answer",
    "question", "number", "morning", "evening", "engine", "block", "cache", "prefix", "token", "router", "queue",
    "request", "model", "light", "quick", "brown", "fox", "lazy", "dog", "wizard",
]
# fmt: on


def passage(name: str, words: int) -> str:
    """``words`` words, the same for the same name; two names share no longer prefix than chance gives."""
    chance = random.Random(name)
    return " ".join([name, *(chance.choice(WORDS) for _ in range(words))])
