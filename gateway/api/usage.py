"""Token counts that an engine reports, in any of the dialects. Never raises: a missing or odd count is None."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.framework import Kind

MAX_COUNT = 2**31
"""A thousand times the longest context: a larger count is an engine's nonsense, and would reach the cost model."""

COUNTS = (
    *("prompt_tokens", "input_tokens", "completion_tokens", "output_tokens"),
    *("cache_read_input_tokens", "cache_creation_input_tokens"),
)
"""The names of counts in all dialects."""


class Usage(msgspec.Struct, frozen=True):
    """Tokens of one answer. ``prompt_tokens`` includes the cached ones, whatever the dialect's own convention.

    ``cached_tokens`` is None if the engine does not report it (vLLM: without ``--enable-prompt-tokens-details``).
    """

    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None

    def merged(self, later: Usage) -> Usage:
        """This, updated with what ``later`` knows: Anthropic streams report a part first and the rest at the end."""
        return Usage(
            self.prompt_tokens if later.prompt_tokens is None else later.prompt_tokens,
            self.output_tokens if later.output_tokens is None else later.output_tokens,
            self.cached_tokens if later.cached_tokens is None else later.cached_tokens,
        )


class _Answer(msgspec.Struct):
    usage: Any = None


_ANSWER = msgspec.json.Decoder(_Answer)


def read_usage(body: bytes, kind: Kind) -> Usage | None:
    """The usage of an unstreamed answer's whole body; None if it has none."""
    try:
        return usage_of(_ANSWER.decode(body).usage, kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def usage_of(usage: object, kind: Kind) -> Usage | None:
    """The counts in a parsed ``usage`` object; None if it is not an object or holds none."""
    if not isinstance(usage, dict):
        return None
    counts: dict[str, int] = {}
    for name in COUNTS:
        value = usage.get(name)
        if type(value) is int and 0 <= value <= MAX_COUNT:
            counts[name] = value
    prompt = counts.get("prompt_tokens", counts.get("input_tokens"))
    output = counts.get("completion_tokens", counts.get("output_tokens"))
    cached = None
    for name in ("prompt_tokens_details", "input_tokens_details"):
        details = usage.get(name)
        if cached is None and isinstance(details, dict):
            value = details.get("cached_tokens")
            cached = value if type(value) is int and 0 <= value <= MAX_COUNT else None
    if kind is Kind.MESSAGES:
        # Anthropic: input_tokens leaves out what was read from the cache and what was written to it.
        cached = counts.get("cache_read_input_tokens")
        if prompt is not None:
            prompt += (cached or 0) + counts.get("cache_creation_input_tokens", 0)
    if prompt is None and output is None and cached is None:
        return None
    return Usage(prompt, output, cached)
