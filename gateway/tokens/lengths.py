"""The maximum length of a prompt that is encoded. Longer prompts are estimated."""

from __future__ import annotations

MAX_TEXT = 8 * 1024 * 1024
"""Characters of a body's prompts that are encoded: two million tokens of English, twice what long contexts take. The
library needs up to 300 bytes a token and a thread cannot be stopped: a whole ``listen.max_body`` of short words would
take gigabytes and a minute, long after its client left."""


def most_of(context: int | None, longest_token: int) -> int:
    """The most characters of a text that an engine may take. A longer text has more tokens than ``context`` (with a
    tokenizer that drops nothing), and vLLM refuses it. ``longest_token``: in characters; 0: not known."""
    return MAX_TEXT if context is None or not longest_token else min(MAX_TEXT, context * longest_token)
