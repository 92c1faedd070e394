"""Whether a tokenizer's texts may be cut between words: before a blank that stands between two ASCII letters.

Why that can hold: words are found from left to right, each by an expression that reads on until its word ends. A letter
and the blank behind it are never of one word, so that a word ends at the cut whether the text goes on or not, and the
next one begins there whatever was before. Rules:

- Every expression by which texts are split is one that is known here: it matches no letter with a blank behind it, asks
  for nothing before its match, and one of them takes whole runs of letters.
- The text is encoded as it is, or in NFC, for which a blank joins nothing; nothing is put before a text.
- No added token holds a letter with a blank behind it, takes the blanks behind a letter, or asks for its neighbours.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

BETWEEN = re.compile(r"[A-Za-z](?= [A-Za-z])")
"""Ends where a text may be cut."""
JOINED = re.compile(r"[A-Za-z] ")

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
LETTERS = frozenset(
    {
        r" ?\p{L}+",
        r"[^\r\n\p{L}\p{N}]?\p{L}+",
        r"[^\r\n\p{L}\p{N}]?+\p{L}+",
        r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+",
    }
)
"""Take a run of letters to its end."""
OTHERS = frozenset(
    {
        *("'s", "'t", "'re", "'ve", "'m", "'ll", "'d"),
        CONTRACTIONS,
        r"'(?i:[sdmt]|ll|ve|re)",
        r"\p{N}",
        r"\p{N}+",
        r"\p{N}{1,3}",
        r" ?\p{N}+",
        r" ?[^\s\p{L}\p{N}]+",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r" ?[^\s\p{L}\p{N}]++[\r\n]*",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r" ?[\p{P}\p{S}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s*[\r\n]",
        r"\s+(?!\S)",
        r"\s+",
    }
)
CASED = frozenset(
    rf"[^\r\n\p{{L}}\p{{N}}]?{first}{one}{second}{two}{rest}"
    for first, one, second, two in ((UPPER, "*", LOWER, "+"), (UPPER, "+", LOWER, "*"))
    for rest in ("", f"{CONTRACTIONS}?")
)
"""Of GPT-4o's kind, the two of them together: a run of letters is cut where capitals begin."""


def cut_between_words(
    backend: Any, pre_tokenizer: Mapping[str, Any] | None, normalizer: Mapping[str, Any] | None
) -> bool:
    """Whether a ``tokenizers.Tokenizer`` allows it by its structure. ``pre_tokenizer``, ``normalizer``: as in
    tokenizer.json; None: it has none."""
    if type(backend.model).__name__ != "BPE" or getattr(backend.model, "dropout", None):
        return False
    if normalizer is not None and normalizer.get("type") != "NFC":
        return False
    if pre_tokenizer is None or not _splits(pre_tokenizer):
        return False
    return not any(
        JOINED.search(token.content) or token.single_word or (token.rstrip and token.content[-1:].isalpha())
        for token in backend.get_added_tokens_decoder().values()
    )


def _splits(pre_tokenizer: Mapping[str, Any]) -> bool:
    """Whether all its steps are known, and a run of letters is a word of its own, or several."""
    found: set[str] = set()
    for step in _steps(pre_tokenizer):
        match step:
            case {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}:
                pass
            case {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}:
                found.add(r" ?\p{L}+")  # GPT-2's expression, which is in the library
            case {"type": "Split", "pattern": {"Regex": str(pattern)}, "behavior": "Isolated", "invert": False}:
                some = set(_alternatives(pattern))
                if not some <= LETTERS | OTHERS | CASED:
                    return False
                found |= some
            case {"type": "Digits"}:
                pass
            case _:
                return False
    return not LETTERS.isdisjoint(found) or len(CASED & found) > 1


def _steps(step: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    if step.get("type") == "Sequence":
        for inner in step["pretokenizers"]:
            yield from _steps(inner)
    else:
        yield step


def _alternatives(pattern: str) -> Iterator[str]:
    """What stands between the ``|`` that are in no group and no class."""
    start = depth = 0
    in_class = escaped = False
    for place, letter in enumerate(pattern):
        if escaped:
            escaped = False
        elif letter == "\\":
            escaped = True
        elif in_class:
            in_class = letter != "]"
        elif letter == "[":
            in_class = True
        elif letter in "()":
            depth += 1 if letter == "(" else -1
        elif letter == "|" and not depth:
            yield pattern[start:place]
            start = place + 1
    yield pattern[start:]
