"""Where a text may be cut, so that the ids of its parts, joined in order, equal the ids of the whole text.

Why this can hold: the library (``tokenizers``, ``added_vocabulary.rs``) first splits the raw text at its *raw* tokens,
the added tokens that are not ``normalized``. Only then is each piece between them normalized, searched for other added
tokens, split into words and encoded, each by itself. So a cut just before a raw token is a split that the library makes
anyway. Every segment except a text's first begins with such a token. So a step that treats a text's beginning
differently (Metaspace's ``prepend_scheme: first``) gives the same result as in the whole text. Rules for a token to cut
at:

- It is raw, and does not consume blanks to its left (``lstrip``): these would lie in the segment before. The blanks
  that it consumes to its right (``rstrip``) lie in its own segment.
- Every occurrence of its characters is found as the token: no raw token contains it, and none, itself included, ends
  with its beginning. So each cut can be decided without looking at the rest of the text.
- No raw token depends on its neighbours (``single_word``), no special token is read as text, the model is deterministic
  (no ``dropout``), and every step is one that is known here.

Long pieces are also cut between words, where the tokenizer allows it (``words``). Then only the end is encoded of a
long message whose end is new, or of a known document with another question behind it.

The cuts that the structure allows are tested at start. After a single difference no text is cut.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from gateway.tokens.words import BETWEEN, POSITION_BETWEEN, cut_between_words

LEAST = 64
"""The fewest characters of a segment, except a text's last. A cached segment takes about 0.7 KB beside its text and
its ids. Up to this many known characters are encoded again with each new turn, at a megabyte a second: a request of
2 KB took 0.07 ms more with 128, and no less with 48."""

LONG = 512
"""The fewest characters of a piece that is cut between words. On average half of it is encoded again, 0.2 ms, if the
end of a text is new. The overhead of each piece takes as much memory as its text and ids."""

NORMALIZERS = frozenset(
    {
        "BertNormalizer",
        "ByteLevel",
        "Lowercase",
        "NFC",
        "NFD",
        "NFKC",
        "NFKD",
        "Nmt",
        "Precompiled",
        "Prepend",
        "Replace",
        "Sequence",
        "Strip",
        "StripAccents",
    }
)
PRE_TOKENIZERS = frozenset(
    {
        "BertPreTokenizer",
        "ByteLevel",
        "CharDelimiterSplit",
        "Digits",
        "FixedLength",
        "Metaspace",
        "Punctuation",
        "Sequence",
        "Split",
        "UnicodeScripts",
        "Whitespace",
        "WhitespaceSplit",
    }
)
MODELS = frozenset({"BPE", "Unigram", "WordLevel", "WordPiece"})
"""Steps of ``tokenizers`` 0.23 that see one piece at a time, and know of the text around it at most whether the piece
is the first."""

FRAGMENTS = (
    "",
    " ",
    "  \n\n ",
    "a word",
    " two  words ",
    "\u0301",
    "e\u0301\u00a0\u3000",
    "\U0001f600\u200d\U0001f525",
    "12,345.6",
    "'s \u2581_",
    "\ufb01\u1100\u1161",
    "<|",
    "|>\t",
    "it's HTTPServer's x re\u0301sum\u00e9 d",
)
"""Text between tokens in a trial: all kinds of blanks and words, combining marks, halves of tags."""

TRIED = 64
"""Tokens that are tried with every fragment; each of the others is tried once."""


@dataclass(frozen=True, slots=True)
class Cuts:
    """``pattern``: finds the tokens that a text may be cut at; None: never. ``why``: then the reason, as a short word.

    ``added``: the ids that the tokenizer puts before and after a text, without and with ``add_special_tokens``; a
    missing entry: not known, and such texts are encoded whole. ``words``: long pieces may be cut between words.
    """

    pattern: re.Pattern[str] | None
    why: str
    added: Mapping[bool, tuple[bytes, bytes]]
    words: bool = False
    ends: Callable[[str, int], re.Match[str] | None] = field(init=False, repr=False, compare=False)
    """Whether a segment of at least ``LEAST`` characters that reaches this position of a text may end there."""

    def __post_init__(self) -> None:
        tokens = [] if self.pattern is None else [self.pattern.pattern]
        places = [r"\Z", *tokens, *([POSITION_BETWEEN] if self.words else [])]
        object.__setattr__(self, "ends", re.compile("|".join(places)).match)

    def end(self, text: str, start: int, least: int = LEAST, long: int = LONG) -> int:
        """Where the segment ends that begins at ``start``."""
        end = len(text)
        if self.words and (between := BETWEEN.search(text, start + long - 1)) is not None:
            end = between.end()
        # No token spans a cut between words.
        found = None if self.pattern is None else self.pattern.search(text, start + least, end)
        return end if found is None else found.start()

    def segments(self, text: str, least: int = LEAST, long: int = LONG) -> Iterator[str]:
        """``text`` in parts; an empty text has none. A prefix has the same parts, except its last."""
        start = 0
        while start < len(text):
            end = self.end(text, start, least, long)
            yield text[start:end]
            start = end


def find_cuts(backend: Any) -> Cuts:
    """Where texts may be cut for a ``tokenizers.Tokenizer`` without truncation and padding. Takes some 10 ms."""
    added = _added(backend)
    try:
        tokens, why = safe_tokens(backend)
        pattern = re.compile(_any_of(tokens)) if tokens else None
    except (RecursionError, re.error, OverflowError):
        tokens, why, pattern = [], "pattern", None
    if pattern is not None and not _holds(backend, Cuts(pattern, "", {}), tokens):
        why, pattern = "trial", None
    # If cuts at tokens fail, cuts between words are not used either, to be safe.
    words = pattern is not None and _has_words(backend) and _holds(backend, Cuts(pattern, "", {}, True), tokens)
    return Cuts(pattern, why, {flag: ids for flag, ids in added.items() if _surrounds(backend, flag, ids)}, words)


def _has_words(backend: Any) -> bool:
    return cut_between_words(backend, state_of(backend, "pre_tokenizer"), state_of(backend, "normalizer"))


def safe_tokens(backend: Any) -> tuple[list[str], str]:
    """The tokens to cut at by the structure alone; where there are none, why."""
    raw = [token for token in backend.get_added_tokens_decoder().values() if not token.normalized and token.content]
    why = ""
    if backend.encode_special_tokens:
        why = "split-specials"
    elif backend.truncation is not None or backend.padding is not None:
        why = "length"
    elif not _known(state_of(backend, "normalizer"), NORMALIZERS):
        why = "normalizer"
    elif not _known(state_of(backend, "pre_tokenizer"), PRE_TOKENIZERS):
        why = "pre-tokenizer"
    elif type(backend.model).__name__ not in MODELS or getattr(backend.model, "dropout", None):
        why = "model"
    elif any(token.single_word for token in raw):
        why = "single-word"
    if why:
        return [], why
    contents = [token.content for token in raw]
    disturbed = _disturbed(contents)
    safe = [
        token.content
        for token in raw
        if not token.lstrip and not token.content[0].isspace() and token.content not in disturbed
    ]
    return safe, "" if safe else "tokens"


def _disturbed(contents: Sequence[str]) -> set[str]:
    """Tokens whose characters may occur in a text without being found, since a match of another token, or of the same
    one, overlaps them."""
    known = set(contents)
    beginnings: dict[str, list[str]] = {}
    for content in known:
        for length in range(1, len(content)):
            beginnings.setdefault(content[:length], []).append(content)
    disturbed: set[str] = set()
    for content in known:
        size = len(content)
        for start in range(size):
            for end in range(start + 1, size + 1):
                if end - start < size and content[start:end] in known:
                    disturbed.add(content[start:end])
            if start:
                disturbed.update(beginnings.get(content[start:], ()))
    return disturbed


def state_of(backend: Any, name: str) -> dict[str, Any] | None:
    """The step ``name`` of a tokenizer as in tokenizer.json; None: it has none. Empty if it is Python code, which
    cannot be serialized."""
    from tokenizers import Tokenizer, models

    if (step := getattr(backend, name)) is None:
        return None
    alone = Tokenizer(models.BPE())  # a tokenizer without a vocabulary, which would be serialized too: megabytes
    try:
        setattr(alone, name, step)
        state = json.loads(alone.to_str())[name]
    except Exception:  # the library raises plain Exception
        return {}
    return state if isinstance(state, dict) else {}


def _known(state: Mapping[str, Any] | None, names: frozenset[str]) -> bool:
    return state is None or _all_known(state, names)


def _all_known(state: Mapping[str, Any], names: frozenset[str]) -> bool:
    inner = [*state.get("normalizers", ()), *state.get("pretokenizers", ())]
    return state.get("type") in names and all(_all_known(one, names) for one in inner)


def _added(backend: Any) -> dict[bool, tuple[bytes, bytes]]:
    """The ids that are put around each text, if they are known."""
    known = {False: (b"", b"")}
    step = state_of(backend, "post_processor")
    around = ([], []) if step is None else _around(step)
    if around is not None:
        known[True] = (array("I", around[0]).tobytes(), array("I", around[1]).tobytes())
    return known


def _around(state: Mapping[str, Any]) -> tuple[list[int], list[int]] | None:
    """Ids that a post-processor puts before and after one text; None if it does more than that, or is not known."""
    match state.get("type"):
        case "ByteLevel":  # moves offsets only
            return [], []
        case "BertProcessing" | "RobertaProcessing":
            return [state["cls"][1]], [state["sep"][1]]
        case "TemplateProcessing":
            before: list[int] = []
            after: list[int] = []
            texts = 0
            for part in state["single"]:
                if "Sequence" in part:
                    texts += 1
                else:
                    (after if texts else before).extend(state["special_tokens"][part["SpecialToken"]["id"]]["ids"])
            return (before, after) if texts == 1 else None
        case "Sequence":
            # The library allows one processor that adds ids.
            adding = [around for inner in state["processors"] if (around := _around(inner)) != ([], [])]
            return adding[0] if len(adding) == 1 else None if adding else ([], [])
    return None


def _any_of(words: Sequence[str]) -> str:
    """A pattern that matches any of ``words``, none of which is a prefix of another. It is a tree, so that each letter
    of a text is looked at once: vocabularies have thousands of added tokens, and a plain list would be tried one by one
    at each ``<``."""
    by_letter: dict[str, list[str]] = {}
    for word in sorted(set(words)):
        by_letter.setdefault(word[0], []).append(word)
    branches = []
    for group in by_letter.values():
        shared = takewhile(lambda letters: letters[0] == letters[1], zip(group[0], group[-1], strict=False))
        start = "".join(letter for letter, _ in shared)  # of the first and the last in order, and so of all
        rests = [word[len(start) :] for word in group]
        branches.append(re.escape(start) + (_any_of(rests) if len(group) > 1 else ""))
    return branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"


def _holds(backend: Any, cuts: Cuts, tokens: Sequence[str]) -> bool:
    """Whether texts of tokens and of ``FRAGMENTS`` between them have the same ids whole and in parts, with all possible
    cuts."""
    texts = [
        f"{fragment}{token}{other}{token}{fragment}"
        for token in tokens[:TRIED]
        for fragment, other in zip(FRAGMENTS, (*FRAGMENTS[1:], FRAGMENTS[0]), strict=True)
    ]
    pairs = zip(tokens, (*tokens[1:], tokens[0]), strict=True)
    texts += [f" x {first}{second} y{second} {first}" for first, second in pairs]
    parts = [list(cuts.segments(text, least=1, long=1)) for text in texts]
    whole = backend.encode_batch_fast(texts, add_special_tokens=False)
    apart = iter(backend.encode_batch_fast([part for some in parts for part in some], add_special_tokens=False))
    return all(
        one.ids == [token for _ in some for token in next(apart).ids] for one, some in zip(whole, parts, strict=True)
    )


def _surrounds(backend: Any, flag: bool, around: tuple[bytes, bytes]) -> bool:
    """Whether the ids put around a text are ``around``, for an empty text, too."""
    texts = [*FRAGMENTS, "Some words."]
    bare = backend.encode_batch_fast(texts, add_special_tokens=False)
    found = backend.encode_batch_fast(texts, add_special_tokens=flag)
    before, after = array("I", around[0]), array("I", around[1])
    return all([*before, *inner.ids, *after] == one.ids for inner, one in zip(bare, found, strict=True))
