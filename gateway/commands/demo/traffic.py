"""Chat traffic of an assistant: a few long system prompts are shared by many users, who each talk for some turns.

It is pure and seeded: the same scene gives the same conversations in the same order.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from gateway.commands.demo.scene import Scene

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
