"""Ids of words: a short new text is encoded by looking up its words, in a sixth of the library's time.

Why this can hold: between two raw added tokens the library splits a text into words, and encodes each word by itself.
So a word's ids are the same in every text. Rules:

- The tokenizer splits as Llama's, Qwen's and GPT's do: with expressions that are known (``words``) and that leave no
  character over. Python's ``re`` finds the same words, since the characters of each class are those that the library
  finds. The same words are found in a trial of all characters.
- A word's ids are the library's own.
- A text is left to the library if it is not plain: if an added token may be in it that is not simply found by its
  characters, if normalizing changes it, or if it has characters of ``BEYOND``.
- One text in ``SAMPLE`` is encoded by the library, too. After a single difference all texts are left to it.

The commonest words of the vocabulary are encoded at start, in the thread that loads the tokenizer: a message of 64
characters costs 25 us more for each word that is not known, on the loop.
"""

from __future__ import annotations

import logging
import re
from array import array
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import accumulate, pairwise
from typing import Any

from tokenizers import Regex, pre_tokenizers

from gateway.tokens.segments import FRAGMENTS, Cuts, safe_tokens, state_of
from gateway.tokens.words import CASED, LETTERS, alternatives, steps

log = logging.getLogger("kvgate.tokens")

BEYOND = 0x2E80
"""From here on there are Chinese, Japanese and Korean characters, whose sentences are one word each, and emoji. The
alphabets are before."""

WORDS = 16_384
"""Words that are remembered, twice: those in use, and those that were in use before. Some 6 MB; the benchmark's 4 MB of
text have 12,000."""

LONGEST = 48
"""Characters of a word that is remembered. A longer one is a row of dashes or no word at all."""

FILLED = 512
"""Words of the vocabulary that are encoded by one call, 2 ms: it holds the GIL while it makes their lists of ids."""

SAMPLE = 512
"""One text in this many is encoded by the library, too: 0.1 us for each."""

NUMBERS = frozenset({r"\p{N}", r"\p{N}+", r"\p{N}{1,3}", r" ?\p{N}+"})
OTHERS = frozenset(
    {
        r" ?[^\s\p{L}\p{N}]+",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r" ?[^\s\p{L}\p{N}]++[\r\n]*",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
    }
)
BLANKS = r"\s+"
"""An expression of each of these, and one of letters, leave no character over."""

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""The expression of ``ByteLevel`` with ``use_regex``, which is in the library."""

BLANK = r"\s"
CLASS = re.compile(r"\\p\{\w+\}|\\s")
"""Named classes of characters in the expressions."""
PART = re.compile(rf"\[[^\]]*\]|{CLASS.pattern}|\\S")
"""Such a class, or one that is spelt out and may hold such classes."""

SENTENCES = (
    "I'm sure they've said it's 3.14, 1,000,000 and 2nd; HE'LL DON'T 'S",
    "\tif x >= 10 and not (y[0] != 'a'):\r\n\t\treturn -1  # done\n\n\n",
    "na\u00efve caf\u00e9 \u0391\u03b8\u03ae\u03bd\u03b1 \u041c\u043e\u0441\u043a\u0432\u0430 \u05e9\u05dc\u05d5",
    "\u0645\u0631\u062d\u0628\u0627 \u0928\u092e\u0938\u094d\u0924\u0947 \u0e44\u0e17\u0e22 \u10e5\u10d0\u10e0",
    "e\u0301 \u017f'\u017f \u2014 \u201cquoted\u201d \u2026 \u00bd \u0664\u0662 \x00\x1c\x7f\x85\u200b\u2028",
    "\u4f60\u597d, \U0001f600!",
)
"""Contractions, numbers, code, several scripts, marks, controls; texts that are left to the library."""

TRIED = 64
"""Characters of one text of the trial."""

LATIN = 0x250
"""Characters before this one are tried between others. What is in an expression by itself is among them, and what is
its small or capital form."""


class WordIds:
    """The words of one tokenizer, and their ids. May be called from any thread. ``on``: false after a difference."""

    def __init__(
        self,
        backend: Any,
        name: str,
        find: Callable[[str], list[str]],
        split: Callable[[str], list[str]],
        tokens: Mapping[str, bytes],
        others: re.Pattern[str] | None,
    ) -> None:
        """``backend``: a ``tokenizers.Tokenizer``. ``name``: the model's. ``find``: the words of a text without tokens.

        ``split``: a text at the ``tokens``, which are between its parts; these have ids. ``others``: finds the tokens
        that may not be in a text.
        """
        self.on = True
        self._backend = backend
        self._name = name
        self._find = find
        self._split = split
        self._tokens = tokens
        self._others = others
        self._known: dict[str, bytes] = dict(tokens)
        self._before: dict[str, bytes] = {}
        self._until_sample = SAMPLE

    def encode(self, text: str) -> bytes | None:
        """The uint32 ids; None: the library must encode it."""
        if not self.on or (not text.isascii() and not self._is_plain(text)):
            return None
        if self._others is not None and self._others.search(text) is not None:
            return None
        words: list[str] = []
        for place, part in enumerate(self._split(text)):
            if place & 1:
                words.append(part)
            else:
                words += self._find(part)
        try:
            ids = b"".join(map(self._known.__getitem__, words))
        except KeyError:
            ids = self._learn(words)
        self._until_sample -= 1  # two threads may both lower it before either looks
        return ids if self._until_sample > 0 else self._compare(text, ids)

    def fill(self) -> None:
        """Encode the first ``WORDS`` words of the vocabulary, which are the commonest. Takes 0.06 s.

        They are remembered as words that were in use before: those that no text has are forgotten first.
        """
        size, found = self._backend.get_vocab_size(with_added_tokens=False), dict[str, bytes]()
        for start in range(0, size, FILLED):
            numbers = [[number] for number in range(start, min(size, start + FILLED))]
            texts = self._backend.decode_batch(numbers, skip_special_tokens=False)
            words = [text for text in texts if 0 < len(text) <= LONGEST and self._is_word(text)][: WORDS - len(found)]
            found |= self._encoded(words)
            if len(found) >= WORDS:
                break
        self._before = found

    def _is_word(self, text: str) -> bool:
        """Whether this is one word, and no token; what is no character of a text is none, either."""
        if not text.isascii() and not self._is_plain(text):
            return False
        if len(self._split(text)) > 1 or (self._others is not None and self._others.search(text) is not None):
            return False
        return self._find(text) == [text]

    def _is_plain(self, text: str) -> bool:
        normalizer = self._backend.normalizer
        return ord(max(text)) < BEYOND and (normalizer is None or normalizer.normalize_str(text) == text)

    def _learn(self, words: Sequence[str]) -> bytes:
        """The ids of ``words``, of which some are not known."""
        known = self._known
        missing = [word for word in dict.fromkeys(words) if word not in known]
        found = {word: ids for word in missing if (ids := self._before.get(word)) is not None}
        new = [word for word in missing if word not in found]
        if new:
            found |= self._encoded(new)
        ids = b"".join([found[word] if word in found else known[word] for word in words])
        if len(known) >= WORDS:
            self._before, self._known = known, dict(self._tokens)
        self._known.update((word, ids) for word, ids in found.items() if len(word) <= LONGEST)
        return ids

    def _encoded(self, words: list[str]) -> dict[str, bytes]:
        """The library's ids of each word."""
        encoded = self._backend.encode_batch_fast(words, add_special_tokens=False)
        return {word: array("I", one.ids).tobytes() for word, one in zip(words, encoded, strict=True)}

    def _compare(self, text: str, ids: bytes) -> bytes:
        """The library's ids, which must be ``ids``."""
        self._until_sample = SAMPLE
        (one,) = self._backend.encode_batch_fast([text], add_special_tokens=False)
        right = array("I", one.ids).tobytes()
        if ids != right:
            self.on = False
            log.warning("model %s: a text's words have other ids than the text: texts are encoded whole", self._name)
        return right


def find_words(backend: Any, name: str, cuts: Cuts) -> WordIds | None:
    """None: a text's ids are not those of its words, or that is not known. Takes some 50 ms.

    ``backend``: a ``tokenizers.Tokenizer`` whose texts have these ``cuts``. ``name``: the model's.
    """
    expression = _expression(state_of(backend, "pre_tokenizer")) if cuts.words else None
    if expression is None or cuts.pattern is None:
        return None
    safe = frozenset(safe_tokens(backend)[0])
    tokens: dict[str, bytes] = {}
    others: set[str] = set()
    for number, token in backend.get_added_tokens_decoder().items():
        if token.content in safe and not token.rstrip:
            tokens[token.content] = array("I", [number]).tobytes()
        elif token.content:
            others.add(token.content)
            if backend.normalizer is not None:  # it is found in normalized text
                others.add(backend.normalizer.normalize_str(token.content))
    find = re.compile(_translated(expression)).findall
    if not _same_words(backend, find):
        return None
    split = re.compile(f"({cuts.pattern.pattern})").split
    pattern = re.compile("|".join(map(re.escape, others))) if others else None
    words = WordIds(backend, name, find, split, tokens, pattern)
    return words if _same_ids(backend, words, [*tokens][:TRIED]) else None


def _expression(pre_tokenizer: Mapping[str, Any] | None) -> str | None:
    """How it splits texts; None: in several steps, with other expressions, or so that characters may be left over."""
    match list(steps(pre_tokenizer or {})):
        case [{"type": "ByteLevel", "use_regex": True}]:
            expression = GPT2
        case [{"type": "Split", "pattern": {"Regex": str(expression)}}, {"type": "ByteLevel", "use_regex": False}]:
            pass
        case _:
            return None
    parts = set(alternatives(expression))
    letters = not LETTERS.isdisjoint(parts) or len(CASED & parts) > 1
    whole = letters and BLANKS in parts and not NUMBERS.isdisjoint(parts) and not OTHERS.isdisjoint(parts)
    return expression if whole else None


def _translated(expression: str) -> str:
    """The same expression for Python's ``re``, which has no such classes, and for characters before ``BEYOND``."""
    ranges = cache(_ranges)

    def translate(part: re.Match[str]) -> str:
        if part[0].startswith("["):
            return CLASS.sub(lambda found: ranges(found[0]), part[0])
        return f"[^{ranges(BLANK)}]" if part[0] == r"\S" else f"[{ranges(part[0])}]"

    return PART.sub(translate, expression)


def _ranges(name: str) -> str:
    """The characters that the library finds for a class, as ranges of a class of Python's."""
    found = []
    split = pre_tokenizers.Split(Regex(f"{name}+"), "removed", invert=True)
    for start in range(0, BEYOND, TRIED):
        for _, (first, end) in split.pre_tokenize_str("".join(map(chr, range(start, start + TRIED)))):
            found.append(f"\\u{start + first:04x}-\\u{start + end - 1:04x}")
    return "".join(found)


def _same_words(backend: Any, find: Callable[[str], list[str]]) -> bool:
    """Whether ``find`` finds the library's words around each character, and all of a text is in words."""
    characters = list(map(chr, range(BEYOND)))
    texts = ["".join(characters[start : start + TRIED]) for start in range(0, BEYOND, TRIED)]
    texts += [f"a{one}b{one}{one} '{one}1{one} \n{one}" for one in characters[:LATIN]]
    for text in texts:
        words = find(text)
        ends = list(accumulate(map(len, words)))
        if "".join(words) != text or ends != [end for _, (_, end) in backend.pre_tokenizer.pre_tokenize_str(text)]:
            return False
    return True


def _same_ids(backend: Any, words: WordIds, tokens: Sequence[str]) -> bool:
    """Whether texts of ``FRAGMENTS`` and ``tokens`` have the same ids by their words."""
    texts = [f"{one}{token}{other}" for token in tokens for one, other in pairwise((*FRAGMENTS, *SENTENCES))]
    found = backend.encode_batch_fast(texts, add_special_tokens=False)
    return all(
        words.encode(text) in (None, array("I", one.ids).tobytes()) for text, one in zip(texts, found, strict=True)
    )
