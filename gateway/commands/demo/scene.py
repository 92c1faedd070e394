"""What the demo runs: the engines, the traffic, and the two configurations that are compared.

The sizes make the choice of an engine matter, and nothing else: all system prompts together are larger than one
engine's cache, and fit easily into four. The traffic is that of an assistant: a few long system prompts are shared by
many users, who each talk for some turns. It is pure and seeded: the same scene gives the same conversations in the same
order.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Scene:
    """The engines behave like a 70B model on four H100: 12,500 prompt tokens and 50 decode steps a second.

    ``prefill_seconds``: for each prompt token that is not cached. ``step_seconds``: for each decode step.
    ``cache_blocks``: blocks of ``block_tokens`` tokens in each engine's cache. ``groups``: number of system prompts,
    each of ``system_words`` words. ``users``: conversations on each system prompt, each of ``turns`` requests.
    ``at_once``: concurrent conversations; the first ones begin ``arrival_seconds`` apart. ``answer_tokens``: the length
    of each answer.
    """

    engines: int = 4
    prefill_seconds: float = 80e-6
    step_seconds: float = 20e-3
    cache_blocks: int = 1400
    block_tokens: int = 16
    groups: int = 12
    system_words: int = 2000
    users: int = 4
    turns: int = 3
    at_once: int = 12
    arrival_seconds: float = 0.2
    answer_tokens: int = 32
    seed: int = 1

    @property
    def requests(self) -> int:
        return self.groups * self.users * self.turns

    @property
    def cache_tokens(self) -> int:
        """The size of one engine's cache."""
        return self.cache_blocks * self.block_tokens

    def engine_flags(self, tokenizer: Path) -> list[str]:
        """The command-line flags for ``python -m simulator``."""
        return [
            f"--tokenizer={tokenizer}",
            f"--num-blocks={self.cache_blocks}",
            f"--block-size={self.block_tokens}",
            f"--prefill-token-seconds={self.prefill_seconds}",
            f"--step-seconds={self.step_seconds}",
            f"--answer-tokens={self.answer_tokens}",
        ]


@dataclass(frozen=True, slots=True)
class Variant:
    """One of the compared configurations. ``wiring``: its keys of plugins.yaml beside the models. ``envoy``: Envoy
    serves the clients, and asks."""

    name: str
    wiring: Mapping[str, Any]
    envoy: bool = False

    def config(self, urls: Sequence[str], tokenizer: Path) -> dict[str, Any]:
        """A whole plugins.yaml (JSON is YAML)."""
        return {
            "listen": {"admin": "", "lame_duck": 0},
            "models": [{"name": "sim", "tokenizer": str(tokenizer), "endpoints": [{"url": url} for url in urls]}],
            "log": {"format": "json", "requests": False},
            **self.wiring,
        }


ROUND_ROBIN = Variant(
    "round robin",
    {
        "plugins": [{"name": "healthy", "type": "healthy"}, {"name": "next", "type": "round-robin"}],
        "profiles": [{"name": "default", "filters": ["healthy"], "picker": "next"}],
    },
)
DEFAULT = Variant("kvgate, default profile", {})
VARIANTS = (ROUND_ROBIN, DEFAULT)
THROUGH_ENVOY = Variant("Envoy, kvgate epp", {}, envoy=True)

TEXT = """
    the a of to and in that is was for on are with as at be this have from or had by not but what all were when we
    there can an your which their said if do will each about how up out them then she many some so these would other
    into has more her two like him see time could no make than first been its who now people my made over did down
    only way find use may water long little very after words called just where most know answer question server
    memory block prompt token request model engine customer order price report table number date name address city
    weather train hour minute morning evening week month year letter document summary sentence example reason rule
"""
WORDS = tuple(TEXT.split())


@dataclass(slots=True)
class Conversation:
    """One user's chat. ``messages``: the conversation so far. ``questions``: those still to be asked."""

    messages: list[dict[str, str]]
    questions: list[str] = field(default_factory=list)


def conversations(scene: Scene) -> list[Conversation]:
    """All conversations, in the order in which they begin."""
    chance = random.Random(scene.seed)
    systems = [f"You are assistant {group}. " + prose(chance, scene.system_words) for group in range(scene.groups)]
    begun = [
        Conversation(
            messages=[{"role": "system", "content": system}],
            questions=[prose(chance, chance.randint(15, 45)) for _ in range(scene.turns)],
        )
        for system in systems
        for _ in range(scene.users)
    ]
    chance.shuffle(begun)
    return begun


def prose(chance: random.Random, words: int) -> str:
    """Sentences of ``words`` words in all. They mean nothing, but are as hard to tokenize as real text."""
    sentences: list[str] = []
    left = words
    while left > 0:
        length = min(left, chance.randint(6, 18))
        sentences.append(" ".join(chance.choices(WORDS, k=length)).capitalize() + ".")
        left -= length
    return " ".join(sentences)
