"""Whether a tokenizer allows cuts between words: before a blank that is between two ASCII letters.

Why this can hold: the pre-tokenizer finds words from left to right, with a regular expression that matches one word at
a time. A letter and the blank after it are never in one word. So a word ends at the cut, whatever follows, and the next
word begins there, whatever came before. Rules:

- Every expression that splits texts is one that is known here: it matches no letter followed by a blank, has no
  look-behind, and one of them matches whole runs of letters.
- The text is encoded unchanged, or in NFC, which never combines a blank with another character. Nothing is put before a
  text.
- No added token contains a letter followed by a blank, consumes the blanks after a letter, or depends on its
  neighbours.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

BETWEEN = re.compile(r"[A-Za-z](?= [A-Za-z])")
"""A match ends at a position where a text may be cut."""
POSITION_BETWEEN = r"(?<=[A-Za-z])(?= [A-Za-z])"
"""The same position as an empty match."""
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
"""Expressions that match a run of letters to its end."""
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
"""The two expressions of GPT-4o and similar tokenizers, which are used together: a run of letters is split where
capitals begin."""


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
    """Whether all its steps are known, and each run of letters is one or several words."""
    found: set[str] = set()
    for step in steps(pre_tokenizer):
        match step:
            case {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}:
                pass
            case {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}:
                found.add(r" ?\p{L}+")  # GPT-2's expression, which is in the library
            case {"type": "Split", "pattern": {"Regex": str(pattern)}, "behavior": "Isolated", "invert": False}:
                some = set(alternatives(pattern))
                if not some <= LETTERS | OTHERS | CASED:
                    return False
                found |= some
            case {"type": "Digits"}:
                pass
            case _:
                return False
    return not LETTERS.isdisjoint(found) or len(CASED & found) > 1


def steps(step: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    if step.get("type") == "Sequence":
        for inner in step["pretokenizers"]:
            yield from steps(inner)
    else:
        yield step


def alternatives(pattern: str) -> Iterator[str]:
    """The parts between those ``|`` that are outside of groups and character classes."""
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
