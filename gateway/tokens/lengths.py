"""The maximum length of a prompt that is encoded. Longer prompts are estimated."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.core.prompt import ChatInput, TextInput
from gateway.tokens.reasons import Unrenderable, Why

MAX_TEXT = 8 * 1024 * 1024
"""Characters of a body's prompts that are encoded: two million tokens of English, twice what long contexts take. The
library needs up to 300 bytes a token and a thread cannot be stopped: a whole ``listen.max_body`` of short words would
take gigabytes and a minute, long after its client left."""


def size_of(prompt: ChatInput | TextInput) -> int:
    """The approximate number of characters of ``prompt``."""
    return len(prompt.raw) if isinstance(prompt, ChatInput) else sum(map(len, prompt.texts))


def most_of(room: int | None, longest_token: int) -> int:
    """The most characters of a text that an engine may take. A longer text has more tokens than ``room`` (with a
    tokenizer that drops nothing), and vLLM refuses it. ``longest_token``: in characters; 0: not known."""
    return MAX_TEXT if room is None or not longest_token else min(MAX_TEXT, room * longest_token)


def check(texts: Sequence[str], most: int) -> None:
    """Raises Unrenderable if all texts together are too long to encode, or one is longer than ``most``."""
    if sum(map(len, texts)) > MAX_TEXT or max(map(len, texts), default=0) > most:
        raise Unrenderable(Why.TOO_LONG)
