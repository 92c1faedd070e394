"""Text to token ids, by the part of a tokenizer that lets go of the interpreter's lock.

Rules: ``encode_batch_fast`` of the Rust backend releases the GIL; plain ``encode`` keeps it, and stops every stream for
as long as it takes. The backend is used alone only if it gives the ids that the whole tokenizer gives, which is tried
at start.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Sequence
from typing import Any

log = logging.getLogger("kvgate.tokens")

SAMPLES = (
    "",
    " ",
    "Hello, world! It's 3.14 o'clock.\n\n\tA tab,  two blanks ",
    " na\u00efve \u4f60\u597d \U0001f600\u200d\U0001f525 \u0301x \u00a0",
    "def f(x):\n    return x ** 2  # \u2264 100\r\n",
    "<s>[INST] <|im_start|>user\nhi<|im_end|></s>",
)
"""Blanks at the ends, digits, scripts, combining marks, line ends, and what often are special tokens."""


class Encoder:
    """One tokenizer's encoding. May be called from any thread."""

    def __init__(self, tokenizer: Any, name: str) -> None:
        """``tokenizer``: a loaded ``transformers`` tokenizer. ``name``: the model's, for a log line."""
        self._tokenizer = tokenizer
        self._backend = self._agreeing_backend(name)

    @property
    def fast(self) -> bool:
        """Encoding lets other threads run."""
        return self._backend is not None

    def encode(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[array[int]]:
        """The uint32 ids of each text."""
        if self._backend is None:
            return [array("I", self._whole(text, add_special_tokens)) for text in texts]
        found = self._backend.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)
        return [array("I", one.ids) for one in found]

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
        # tokenizer.json may hold these, and a call of the whole tokenizer sets them anew each time.
        backend.no_truncation()
        backend.no_padding()
        backend.encode_special_tokens = bool(getattr(self._tokenizer, "split_special_tokens", False))
        for flag, wanted in zip((False, True), expected, strict=True):
            found = backend.encode_batch_fast(samples, add_special_tokens=flag)
            if [one.ids for one in found] != wanted:
                log.warning("model %s: its tokenizer changes text in Python: long prompts will hold up others", name)
                return None
        return backend
