"""Encodes text to token ids with the Rust part of a tokenizer, which releases the GIL.

Rules: ``encode_batch_fast`` of the Rust backend releases the GIL; plain ``encode`` holds it, which stops every stream
for that time. The backend is used without the Python tokenizer around it only if both give the same ids. That is tested
at start. Encoded text is cached in segments (``segments``, ``segment_cache``), and only the rest is encoded: by its
words if it is short (``word_ids``).

The library's own threads are switched off by ``libraries``.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Sequence
from itertools import islice
from operator import attrgetter
from typing import Any

import msgspec

from gateway.core.prompt import Ids, PrefixedIds, joined
from gateway.tokens.segment_cache import Lookup, Segment, SegmentCache
from gateway.tokens.segments import LEAST, Cuts, find_cuts
from gateway.tokens.word_ids import WordIds, find_words

log = logging.getLogger("kvgate.tokens")

SAMPLES = (
    "",
    " ",
    "Hello, world! It's 3.14 o'clock.\n\n\tA tab,  two blanks ",
    " na\u00efve \u4f60\u597d \U0001f600\u200d\U0001f525 \u0301x \u00a0",
    "def f(x):\n    return x ** 2  # \u2264 100\r\n",
    "<s>[INST] <|im_start|>user\nhi<|im_end|></s>",
)
"""Blanks at the ends, digits, scripts, combining marks, line ends, and common special tokens."""

TOGETHER = 32
"""Segments that are encoded by one call, some 5 ms of work. The call holds the GIL while it makes the list of ids and
frees its results: 8 ms for 100,000 tokens at once, 0.3 ms for this many. The total time is the same."""

TAILS = 64
"""Short ends of texts whose ids are kept, some 20 KB. Most chats end alike, with what the template puts before an
answer: not to encode that each time saves a quarter of the library's time for a message of 64 characters."""

BY_WORDS = 4096
"""New characters that are encoded by their words, 0.3 ms. More are encoded in a thread, and only the library does that
without the GIL."""

_IDS = attrgetter("ids")


class Reading(msgspec.Struct, eq=False):
    """Texts of one prompt, and what the cache knows of their ids. ``lookups``: one for each text, which may stop before
    its end; empty if there is no cache. ``new``: characters to encode or to look up."""

    texts: Sequence[str]
    add_special_tokens: bool
    lookups: Sequence[Lookup]
    new: int


class Encoder:
    """Encodes with one tokenizer. May be called from any thread."""

    def __init__(self, tokenizer: Any, name: str, memory_bytes: int = 0) -> None:
        """``tokenizer``: a loaded ``transformers`` tokenizer. ``name``: the model's, for a log line.

        ``memory_bytes``: for texts and their ids; 0: nothing is kept.
        """
        self._tokenizer = tokenizer
        self._backend = self._agreeing_backend(name)
        self._cuts = Cuts(None, "python", {})
        self._cache: SegmentCache | None = None
        self._words: WordIds | None = None
        self._tails: dict[str, bytes] = {}
        if self._backend is not None and memory_bytes:
            self._cuts = find_cuts(self._backend)
            self._cache = SegmentCache(memory_bytes, self._cuts)
            self._words = find_words(self._backend, name, self._cuts)
            if self._words is not None:
                self._words.fill()
            if self._cuts.pattern is None:
                log.info("model %s: its tokenizer allows no cut (%s): each turn is encoded whole", name, self._cuts.why)

    def encode(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[array[int]]:
        """The uint32 ids of each text."""
        return list(map(joined, self.finish(self.read(texts, add_special_tokens=add_special_tokens))))

    def read(self, texts: Sequence[str], *, add_special_tokens: bool, most: int | None = None) -> Reading:
        """Look the texts up in the cache. Takes a third of a millisecond for 100,000 known tokens, and up to 17 ms for
        new ones.

        ``most``: new characters of each text that are looked at; ``finish`` looks at the rest. None: all.
        """
        cache = self._cache
        if cache is None or add_special_tokens not in self._cuts.added:
            return Reading(texts, add_special_tokens, (), sum(map(len, texts)))
        lookups, new = [], 0
        for text in texts:
            lookup = cache.look_up(Lookup(text), most)
            lookups.append(lookup)
            new += lookup.new
        return Reading(texts, add_special_tokens, lookups, new)

    def finish(self, reading: Reading) -> list[Ids]:
        """The ids of each text. What is not known is encoded and cached."""
        if self._backend is None:
            return [array("I", self._whole(text, reading.add_special_tokens)) for text in reading.texts]
        cache, lookups = self._cache, reading.lookups
        if cache is None or not lookups:
            found = self._backend.encode_batch_fast(list(reading.texts), add_special_tokens=reading.add_special_tokens)
            return [array("I", one.ids) for one in found]
        unknown: dict[str, list[Segment]] = {}
        for lookup in lookups:
            if lookup.at < len(lookup.text):
                cache.look_up(lookup)
            for segment in lookup.missing:
                known = cache.segments.get(segment.text)
                if known is not None:  # another thread has encoded it meanwhile
                    segment.ids = known.ids
                elif (tail := self._tails.get(segment.text)) is not None:
                    segment.ids = tail
                else:
                    unknown.setdefault(segment.text, []).append(segment)
        by_words = self._words if sum(map(len, unknown)) <= BY_WORDS else None
        left = iter(unknown)
        while texts := list(islice(left, TOGETHER)):
            made: list[bytes | None] = [None] if by_words is None else list(map(by_words.encode, texts))
            if None in made:
                found = self._backend.encode_batch_fast(texts, add_special_tokens=False)
                made = [array("I", one.ids).tobytes() for one in found]
            for text, encoded in zip(texts, made, strict=True):
                for segment in unknown[text]:
                    segment.ids = encoded
                if len(text) < LEAST and encoded is not None:
                    if len(self._tails) >= TAILS:
                        self._tails.clear()
                    self._tails[text] = encoded
        before, after = self._cuts.added[reading.add_special_tokens]
        whole: list[Ids] = []
        for lookup in lookups:
            pieces = list(map(_IDS, lookup.segments))
            prefix, shared = (None, 0) if before else (lookup.prefix, lookup.shared)
            rest = array("I", b"".join((before, *pieces[shared:], after)))
            whole.append(rest if prefix is None else PrefixedIds(prefix, pieces[:shared], rest))
            cache.add(lookup)
        return whole

    def _whole(self, text: str, add_special_tokens: bool) -> list[int]:
        ids: list[int] = self._tokenizer(text, add_special_tokens=add_special_tokens)["input_ids"]
        return ids

    def _agreeing_backend(self, name: str) -> Any:
        backend: Any = getattr(self._tokenizer, "backend_tokenizer", None)
        if not hasattr(backend, "encode_batch_fast"):
            log.warning("model %s: its tokenizer is written in Python: long prompts will hold up other requests", name)
            return None
        specials = [str(token) for token in self._tokenizer.all_special_tokens]
        samples = [*SAMPLES, "x".join(["", *specials, ""])]
        expected = [[self._whole(text, flag) for text in samples] for flag in (False, True)]
        # tokenizer.json may set truncation and padding. The Python tokenizer sets them anew at each call.
        backend.no_truncation()
        backend.no_padding()
        backend.encode_special_tokens = bool(getattr(self._tokenizer, "split_special_tokens", False))
        for flag, wanted in zip((False, True), expected, strict=True):
            found = backend.encode_batch_fast(samples, add_special_tokens=flag)
            if [one.ids for one in found] != wanted:
                log.warning("model %s: its tokenizer changes text in Python: long prompts will hold up others", name)
                return None
        return backend
