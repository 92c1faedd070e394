"""What an encoder encodes."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.tokens.encode import Encoder


def watched(encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that ``encoder`` encodes from now on, by the library or by their words, as they come."""
    backend, encoded = encoder._backend, list[str]()

    class Watched:
        def encode_batch_fast(self, texts: list[str], **how: Any) -> Any:
            encoded.extend(texts)
            return backend.encode_batch_fast(texts, **how)

    monkeypatch.setattr(encoder, "_backend", Watched())
    if (words := encoder._words) is not None:
        encode = words.encode

        def watch(text: str) -> bytes | None:
            ids = encode(text)
            if ids is not None:
                encoded.append(text)
            return ids

        monkeypatch.setattr(words, "encode", watch)
    return encoded
